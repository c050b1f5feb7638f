use proptest::prelude::*;

use super::*;
use crate::sim::name;

fn keys() -> Keys {
    Keys::new("/taut/")
}

fn b64(text: &str) -> String {
    base64(text)
}

#[test]
fn the_keys_are_below_the_prefix() {
    assert_eq!(keys().members(), "/taut/members");
    assert_eq!(keys().up(&name("fra1")), "/taut/up/fra1");
    assert_eq!(Keys::new("/a/b").members(), "/a/b/members");
}

#[test]
fn requests_are_what_the_gateway_documents() {
    let request = read_list(&keys());
    assert_eq!(request.path, "/v3/kv/range");
    assert_eq!(
        request.body,
        format!("{{\"key\":\"{}\"}}", b64("/taut/members"))
    );
    let present: Value = serde_json::from_str(&read_present(&keys()).body).unwrap();
    assert_eq!(present["key"], b64("/taut/up/"));
    assert_eq!(present["range_end"], b64("/taut/up0"));
    let watch: Value = serde_json::from_str(&watch_list(&keys(), 7).body).unwrap();
    assert_eq!(watch["create_request"]["start_revision"], "8");
    // A password is text, whatever it contains.
    let login: Value = serde_json::from_str(&authenticate("a", "\"}\n\u{1f600}").body).unwrap();
    assert_eq!(login["password"], "\"}\n\u{1f600}");
    let presence = Presence { instance: 10 };
    let put: Value =
        serde_json::from_str(&register(&keys(), &name("a"), presence, 5).body).unwrap();
    let value = &put["success"][0]["requestPut"]["value"];
    assert_eq!(*value, b64("0000000000000000000000000000000a"));
}

#[test]
fn a_list_is_read_with_its_revision_and_may_be_missing() {
    let body = format!(
        "{{\"header\":{{\"revision\":\"12\"}},\"kvs\":[{{\"key\":\"x\",\"value\":\"{}\"}}],\"count\":\"1\"}}",
        b64("a list")
    );
    let read = offer(body.as_bytes()).unwrap();
    assert_eq!((read.list.as_deref(), read.revision), (Some("a list"), 12));
    let read = offer(b"{\"header\":{\"revision\":\"3\"}}").unwrap();
    assert_eq!((read.list, read.revision), (None, 3));
    for bad in [
        "",
        "1",
        "{\"kvs\":[{\"value\":\"?\"}]}",
        "{\"header\":{\"revision\":\"x\"}}",
    ] {
        assert!(offer(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_watch_says_what_changed_and_when_it_has_ended() {
    let put = format!(
        "{{\"result\":{{\"header\":{{\"revision\":\"5\"}},\"events\":[{{\"kv\":{{\"value\":\"{}\"}}}}]}}}}",
        b64("new")
    );
    let Ok(WatchMessage::Changed(change)) = watch_message(put.as_bytes()) else {
        panic!("no change");
    };
    assert_eq!((change.list.as_deref(), change.revision), (Some("new"), 5));
    let delete = "{\"result\":{\"header\":{\"revision\":\"6\"},\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"eA==\"}}]}}";
    let Ok(WatchMessage::Changed(change)) = watch_message(delete.as_bytes()) else {
        panic!("no change");
    };
    assert_eq!((change.list, change.revision), (None, 6));
    for (line, expected) in [
        ("{\"result\":{\"created\":true}}", WatchMessage::Quiet),
        (
            "{\"result\":{\"canceled\":true,\"compact_revision\":\"9\"}}",
            WatchMessage::Ended { compacted: true },
        ),
        (
            "{\"result\":{\"canceled\":true,\"cancel_reason\":\"no\"}}",
            WatchMessage::Ended { compacted: false },
        ),
    ] {
        assert_eq!(watch_message(line.as_bytes()), Ok(expected), "{line}");
    }
    let error = "{\"error\":{\"grpc_code\":16,\"http_code\":401,\"message\":\"bad\\ntoken\"}}";
    let Err(ReplyError::Fault(fault)) = watch_message(error.as_bytes()) else {
        panic!("no fault");
    };
    assert!(fault.wants_token());
    assert_eq!(fault.message, "badtoken");
    assert!(watch_message(b"{}").is_err());
}

#[test]
fn a_lease_has_a_term_and_is_kept_while_it_exists() {
    let granted = lease(b"{\"ID\":\"7587\",\"TTL\":\"30\"}").unwrap();
    assert_eq!(
        granted,
        Lease {
            id: 7587,
            seconds: 30
        }
    );
    for bad in ["{}", "{\"ID\":\"1\"}", "{\"ID\":\"1\",\"TTL\":\"-1\"}"] {
        assert!(lease(bad.as_bytes()).is_err(), "{bad}");
    }
    let kept = b"{\"result\":{\"ID\":\"7587\",\"TTL\":\"30\"}}\n";
    assert_eq!(check_kept(kept), Ok(true));
    assert_eq!(check_kept(b"{\"result\":{\"ID\":\"7587\"}}"), Ok(false));
}

#[test]
fn a_name_that_is_taken_is_told_from_the_own_announcement() {
    assert_eq!(registered(b"{\"succeeded\":true}"), Ok(Registered::Done));
    let taken = |value: &str| {
        let body = format!(
            "{{\"responses\":[{{\"response_range\":{{\"kvs\":[{{\"value\":\"{value}\"}}]}}}}]}}"
        );
        registered(body.as_bytes())
    };
    let other = Presence { instance: 255 };
    assert_eq!(
        taken(&b64(&other.encode())),
        Ok(Registered::Taken(Some(other)))
    );
    assert_eq!(taken(&b64("someone")), Ok(Registered::Taken(None)));
    assert_eq!(taken("?"), Ok(Registered::Taken(None)));
}

#[test]
fn who_is_present_is_read_from_the_keys() {
    let kvs: Vec<_> = [
        "/taut/up/fra1",
        "/taut/up/a b",
        "/other/up/x",
        "/taut/up/nyc1",
    ]
    .map(|key| json!({ "key": b64(key) }))
    .into();
    let body = json!({ "kvs": kvs }).to_string();
    let names = present(body.as_bytes(), &keys()).unwrap().names;
    assert_eq!(names, [name("fra1"), name("nyc1")]);
}

#[test]
fn errors_of_etcd_are_told_apart_and_repeated_in_part() {
    let denied = fault(
        403,
        b"{\"error\":\"no\",\"code\":7,\"message\":\"etcdserver: permission denied\"}",
    );
    assert!(denied.is_denial() && !denied.wants_token());
    assert_eq!(
        denied.to_string(),
        "etcd: etcdserver: permission denied (code 7)"
    );
    let nameless = fault(
        400,
        b"{\"code\":3,\"message\":\"etcdserver: user name is empty\"}",
    );
    assert!(nameless.is_denial());
    assert_eq!(fault(502, b"<html>\n").message, "HTTP status 502 <html>");
    let long = format!("{{\"message\":\"{}\"}}", "x".repeat(5000));
    assert_eq!(fault(500, long.as_bytes()).message.len(), 200);
    assert!(token(b"{\"token\":\"a.1\"}").is_ok());
    for bad in ["{}", "{\"token\":\"\"}", "{\"token\":\"a\\r\\nb\"}"] {
        assert!(token(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_line_has_a_greatest_length() {
    let mut lines = Lines::default();
    assert_eq!(
        lines.push(&vec![b'x'; MAX_REPLY - 1]).unwrap(),
        Vec::<Vec<u8>>::new()
    );
    assert_eq!(lines.push(b"\n").unwrap()[0].len(), MAX_REPLY - 1);
    lines.push(&vec![b'x'; MAX_REPLY]).unwrap();
    assert_eq!(lines.push(b"\n"), Err(ReplyError::TooLong));
}

proptest! {
    #[test]
    fn lines_do_not_depend_on_how_the_stream_is_cut(
        parts in prop::collection::vec("[a-c\n\r]{0,12}", 0..12),
    ) {
        let whole = parts.concat();
        let expected: Vec<_> = whole
            .split('\n')
            .take(whole.matches('\n').count())
            .map(|line| line.trim_ascii().as_bytes().to_vec())
            .filter(|line| !line.is_empty())
            .collect();
        let mut lines = Lines::default();
        let mut got = Vec::new();
        for part in &parts {
            got.extend(lines.push(part.as_bytes()).unwrap());
        }
        prop_assert_eq!(got, expected);
    }
}
