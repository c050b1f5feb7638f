use proptest::prelude::*;

use super::*;
use crate::rows::history::History;
use crate::rows::sim::{any_row, id, key, name};

fn signed(row: Row) -> SignedRow {
    row.sign(&name(0), &key(0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_message_is_decoded_as_it_was_and_has_one_form(row in any_row(), age in 0_u64..1_000_000) {
        let age = Duration::from_millis(age);
        let message = RowMessage::whole(id(0), &signed(row), age);
        let bytes = message.encode();
        prop_assert_eq!(RowMessage::decode(&bytes), Ok(message.clone()));
        prop_assert!(message.apply(None).is_of(&name(0), &[key(0).public()]));
        for end in 0..bytes.len() {
            prop_assert_eq!(RowMessage::decode(&bytes[..end]), Err(MessageError));
        }
    }

    #[test]
    fn changes_make_the_new_row_of_any_version_since_their_base(
        mut rows in prop::collection::vec(any_row(), 2..5),
    ) {
        for (version, row) in (1..).zip(&mut rows) {
            row.version = version;
        }
        let mut history = History::default();
        for pair in rows.windows(2) {
            history.add(&pair[0], &pair[1]);
        }
        let last = signed(rows[rows.len() - 1].clone());
        let Some(changed) = history.since(1) else {
            return Ok(());
        };
        let message = RowMessage::changes(id(0), &last, Duration::ZERO, 1, &changed);
        let message = RowMessage::decode(&message.encode()).unwrap();
        for held in &rows[..rows.len() - 1] {
            prop_assert_eq!(&message.clone().apply(Some(held)), &last);
        }
    }
}

#[test]
fn changes_are_shorter_than_the_row() {
    let before = crate::rows::sim::row(1, 1..500, 20);
    let mut after = before.clone();
    after.version = 2;
    after.members[7].figure = crate::rows::sim::figure(40);
    let mut history = History::default();
    history.add(&before, &after);
    let after = signed(after);
    let changes = RowMessage::changes(id(0), &after, Duration::ZERO, 1, &history.since(1).unwrap());
    assert!(changes.encode().len() < 120);
    assert!(
        RowMessage::whole(id(0), &after, Duration::ZERO)
            .encode()
            .len()
            > 4990
    );
}
