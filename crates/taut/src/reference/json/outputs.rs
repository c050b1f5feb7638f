//! What prints JSON, and where its types are.

/// What a command prints: the commands, how its parts are written, the file and the type or the
/// variant of one.
pub(super) type Output = (
    &'static [&'static str],
    &'static str,
    &'static str,
    &'static str,
);

pub(super) const OUTPUTS: &[Output] = &[
    (
        &["taut top --json"],
        "a line for each connection and scan",
        "taut/src/top.rs",
        "Line",
    ),
    (
        &["taut why --json"],
        "a line for each connection",
        "observe/src/explain.rs",
        "Line",
    ),
    (
        &["taut why --json", "taut top --json"],
        "a line for each sum of ended connections, after those of the connections",
        "observe/src/ended/render.rs",
        "Line",
    ),
    (
        &["taut why --json"],
        "a line for each listener that dropped connection attempts, at the end",
        "observe/src/explain.rs",
        "ListenerLine",
    ),
    (
        &["taut watch"],
        "a line for each record",
        "observe/src/watch/line.rs",
        "Line",
    ),
    (
        &["taut status --json"],
        "one object",
        "taut/src/status.rs",
        "Overview",
    ),
    (
        &["taut check --json"],
        "one object",
        "taut/src/check.rs",
        "Checked",
    ),
    (
        &["taut tune --json"],
        "a line for each change",
        "tune/src/report.rs",
        "ChangeReport",
    ),
    (
        &["taut relay status --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "Answer::Status",
    ),
    (
        &["taut relay sessions --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "Answer::Sessions",
    ),
    (
        &["taut relay end --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "Answer::Ended",
    ),
    (
        &["taut relay drain --json", "taut relay reload --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "Answer::Done",
    ),
    (
        &["session_log of taut relay"],
        "a line for each session",
        "relay/src/session_log/record.rs",
        "SessionRecord",
    ),
    (
        &["taut mesh status --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "MeshStatus",
    ),
    (
        &["taut mesh rtt --json"],
        "one object",
        "relay/src/control/protocol.rs",
        "RttRows",
    ),
    (
        &["taut mesh plan --json"],
        "one object",
        "taut/src/mesh/plan/json.rs",
        "Plan",
    ),
    (
        &["taut mesh plan --json"],
        "a line for each connection with `--for`",
        "taut/src/mesh/plan/running.rs",
        "Line",
    ),
    (
        &["taut mesh sign --json"],
        "one object",
        "taut/src/mesh/sign.rs",
        "Signed",
    ),
    (
        &["taut mesh dns --json"],
        "one object, with `--explain`",
        "taut/src/mesh/dns.rs",
        "Explanation",
    ),
    (
        &["taut snoop status --json"],
        "one object",
        "taut/src/snoop.rs",
        "Taps",
    ),
    (
        &["taut snoop cost --json"],
        "one object",
        "taut/src/snoop.rs",
        "Costs",
    ),
    (
        &["taut guest status --json"],
        "one object",
        "guest/src/report.rs",
        "Report",
    ),
    (
        &["taut doctor --json"],
        "one object",
        "taut/src/doctor/report.rs",
        "Report",
    ),
];

/// A field: its name, what it is, and its meaning.
pub(super) type FieldByHand = (&'static str, &'static str, &'static str);

/// Types that write themselves: what they write, and for those with fields, these and their meaning.
pub(super) const WRITTEN_BY_HAND: &[(&str, &str, &[FieldByHand])] = &[
    (
        "Instruments",
        "object of number",
        &[(
            "NAME",
            "number",
            "one for each of the [instruments](../instruments.md) that the kernel reports",
        )],
    ),
    (
        "Seconds",
        "object of number",
        &[(
            "NAME",
            "number",
            "seconds of a [phase](../observe.md#connections-that-have-ended); phases without time are absent",
        )],
    ),
    (
        "TcpInfo",
        "object",
        &[(
            "NAME",
            "number or null",
            "one for each of the [statistics of a leg](../relay-session-log.md#fields)",
        )],
    ),
    (
        "Counts",
        "object of number",
        &[(
            "NAME",
            "number",
            "one for each of the [counters](../guest.md#json)",
        )],
    ),
    (
        "Verdict",
        "object",
        &[
            (
                "factor",
                "text",
                "the [factor](../why.md#what-limits-a-connection) that limits the connection",
            ),
            ("confidence", "text", "`sure`, `likely` or `unclear`"),
            (
                "weight",
                "number",
                "the share of the time that the factor accounts for, from 0 to 1",
            ),
            (
                "shares",
                "object of number",
                "such a share for each factor that was detected",
            ),
            (
                "evidence",
                "list of Evidence",
                "the sentences that support the verdict",
            ),
            ("remedy", "text or null", "what helps, in a sentence"),
            (
                "gain",
                "Option<Gain>",
                "what the connection would carry without the factor",
            ),
        ],
    ),
];
