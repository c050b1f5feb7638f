//! `taut mesh status`: the mesh as a running relay knows it.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use taut_observe::versioned::Versioned;
use taut_relay::control;
use taut_relay::control::protocol::{
    Answer, MemberState, MemberStatus, MeshStatus, Request, RouteStatus,
};
use taut_sys::plural::counted;

use crate::failure::Failure;

/// Show the mesh as the running relay knows it: members, paths, automatic routes
#[derive(Args)]
#[command(after_help = "Example:
  taut mesh status --json | jq .members")]
pub(crate) struct StatusArgs {
    /// Print the answer as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Control socket of the relay (relay.control)
    #[arg(long, value_name = "PATH", default_value = control::PATH, help_heading = "The relay")]
    control: PathBuf,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let answer = control::ask(&args.control, &Request::Mesh).map_err(|e| run(&e))?;
    let Answer::Mesh(status) = answer else {
        return Err(Failure::Run(
            "the relay does not understand this request: it runs another version of taut; restart it with this one".to_owned(),
        ));
    };
    let text = match args.json {
        true => Versioned::new(&status).pretty().map_err(|e| run(&e))?,
        false => in_words(&status),
    };
    crate::failure::print(&text)
}

fn in_words(status: &MeshStatus) -> String {
    let mut text = format!(
        "relay {} of {}\n",
        status.name,
        counted(status.members.len(), "member")
    );
    for member in &status.members {
        let _ = writeln!(text, "  {}: {}", member.name, member_in_words(member));
    }
    if !status.routes.is_empty() {
        text.push_str("automatic routes\n");
    }
    for route in &status.routes {
        let RouteStatus {
            forward,
            to,
            why,
            since_s,
            ..
        } = route;
        let _ = writeln!(text, "  {forward}, to {to}: {why}; for {since_s:.0} s");
    }
    let rows = &status.rows;
    let _ = writeln!(
        text,
        "rows: {} known, {}; {} sent, {} received, {} refused",
        rows.known,
        counted(rows.bytes, "byte"),
        counted(rows.sent_bytes, "byte"),
        rows.received_bytes,
        counted(rows.refused, "row")
    );
    text
}

fn member_in_words(member: &MemberStatus) -> String {
    let mut parts = vec![
        match member.state {
            MemberState::This => "this relay",
            MemberState::Up => "up",
            MemberState::Down => "cannot be reached",
            MemberState::Unknown => "not measured",
        }
        .to_owned(),
    ];
    if let (Some(rtt), Some(loss)) = (member.rtt_ms, member.loss) {
        parts.push(format!("{rtt:.2} ms, {:.3} % lost", loss * 100.0));
    }
    match member.row_age_s {
        Some(age) => parts.push(format!("its row is {age:.0} s old")),
        // Its port answers, which says nothing about its key.
        None if member.state == MemberState::Up => {
            parts.push("no row from it; if that lasts, see its log".to_owned());
        }
        None => {}
    }
    if member.pool_ready + member.sessions > 0 {
        parts.push(format!(
            "{} ready, {}",
            counted(member.pool_ready, "connection"),
            counted(member.sessions, "session")
        ));
    }
    parts.join("; ")
}
