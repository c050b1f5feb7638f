//! Writes reports as rows of Apache Parquet, with a column for each figure.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::UNIX_EPOCH;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use super::files::Body;
use super::line::Line;
use crate::instruments::INSTRUMENTS;
use crate::verdict::{Factor, Gain};

/// The number of rows in a group. Rows stay in memory, some kilobytes each, until their group is
/// written.
const GROUP: usize = 4096;

/// Reads a figure from a report.
type FigureOf = Box<dyn Fn(&Line<'_>) -> Option<f64> + Send + Sync>;

/// Reads the value of a column from a report; `None` becomes null.
enum Cell {
    Text(fn(&Line<'_>) -> Option<String>),
    Whole(fn(&Line<'_>) -> Option<u64>),
    /// Milliseconds since 1970.
    Time(fn(&Line<'_>) -> u64),
    Figure(FigureOf),
}

/// All columns by name.
static COLUMNS: LazyLock<Vec<(String, Cell)>> = LazyLock::new(columns);

/// A value of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An unsigned integer.
    Whole(u64),
    /// A floating-point number.
    Figure(f64),
}

/// The values of a report, by column.
pub type Row = Vec<Option<Value>>;

/// A file of rows.
pub struct Parquet {
    writer: SerializedFileWriter<File>,
    /// Rows that are not written yet, and the size of their values in bytes.
    pending: Vec<Row>,
    pending_bytes: u64,
    /// Number of all rows.
    rows: u64,
}

/// Returns the values of a report.
pub(super) fn row(line: &Line<'_>) -> Row {
    let value = |(_, cell): &(String, Cell)| match cell {
        Cell::Text(of) => of(line).map(Value::Text),
        Cell::Whole(of) => of(line).map(Value::Whole),
        Cell::Time(of) => Some(Value::Whole(of(line))),
        Cell::Figure(of) => of(line).map(Value::Figure),
    };
    COLUMNS.iter().map(value).collect()
}

fn columns() -> Vec<(String, Cell)> {
    let record: [(&str, Cell); 26] = [
        ("time", Cell::Time(millis)),
        ("event", Cell::Text(|line| Some(line.event.to_owned()))),
        (
            "figures",
            Cell::Text(|line| line.figures.map(str::to_owned)),
        ),
        ("seconds", Cell::Figure(Box::new(|line| line.seconds))),
        ("lasted", Cell::Figure(Box::new(|line| line.lasted))),
        ("cookie", Cell::Whole(|line| Some(line.record.cookie))),
        (
            "netns",
            Cell::Text(|line| Some(line.record.netns.to_owned())),
        ),
        (
            "local_address",
            Cell::Text(|line| Some(line.record.local.ip().to_string())),
        ),
        (
            "local_port",
            Cell::Whole(|line| Some(line.record.local.port().into())),
        ),
        (
            "remote_address",
            Cell::Text(|line| Some(line.record.remote.ip().to_string())),
        ),
        (
            "remote_port",
            Cell::Whole(|line| Some(line.record.remote.port().into())),
        ),
        (
            "state",
            Cell::Text(|line| Some(line.record.state.to_owned())),
        ),
        ("uid", Cell::Whole(|line| Some(line.record.uid.into()))),
        ("cgroup", Cell::Whole(|line| line.record.cgroup)),
        (
            "pid",
            Cell::Whole(|line| Some(line.record.process.as_ref()?.pid.into())),
        ),
        (
            "process",
            Cell::Text(|line| Some(line.record.process.as_ref()?.name.to_owned())),
        ),
        (
            "container",
            Cell::Text(|line| Some(line.record.process.as_ref()?.container?.to_owned())),
        ),
        (
            "congestion_control",
            Cell::Text(|line| line.record.congestion_control.map(str::to_owned)),
        ),
        (
            "sent_rate",
            Cell::Figure(Box::new(|line| Some(line.record.rates?.sent))),
        ),
        (
            "received_rate",
            Cell::Figure(Box::new(|line| Some(line.record.rates?.received))),
        ),
        (
            "factor",
            Cell::Text(|line| Some(line.record.verdict.as_ref()?.factor.name().to_owned())),
        ),
        (
            "confidence",
            Cell::Text(|line| Some(line.record.verdict.as_ref()?.confidence.name().to_owned())),
        ),
        (
            "weight",
            Cell::Figure(Box::new(|line| Some(line.record.verdict.as_ref()?.weight))),
        ),
        (
            "gain_rate",
            Cell::Figure(Box::new(|line| Some(gain(line)?.rate))),
        ),
        (
            "gain_is_lower_bound",
            Cell::Whole(|line| Some(gain(line)?.is_lower_bound.into())),
        ),
        (
            "gain_next",
            Cell::Text(|line| Some(gain(line)?.next?.name().to_owned())),
        ),
    ];
    let limited = Factor::ALL.map(|factor| {
        let name = format!("limited_{}", factor.name().replace('-', "_"));
        let of = move |line: &Line<'_>| line.limited.get(factor.name()).copied();
        (name, Cell::Figure(Box::new(of)))
    });
    let instruments = INSTRUMENTS.iter().map(|instrument| {
        let of = |line: &Line<'_>| line.record.instruments.read(instrument);
        (instrument.name.to_owned(), Cell::Figure(Box::new(of)))
    });
    let record = record.map(|(name, cell)| (name.to_owned(), cell));
    record
        .into_iter()
        .chain(limited)
        .chain(instruments)
        .collect()
}

fn gain(line: &Line<'_>) -> Option<Gain> {
    line.record.verdict.as_ref()?.gain
}

fn millis(line: &Line<'_>) -> u64 {
    let since = line.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn schema() -> Result<Type, ParquetError> {
    let columns = COLUMNS.iter().map(|(name, cell)| {
        let (physical, logical) = match cell {
            Cell::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Cell::Whole(_) => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Cell::Time(_) => (
                Physical::INT64,
                Some(LogicalType::timestamp(true, TimeUnit::MILLIS)),
            ),
            Cell::Figure(_) => (Physical::DOUBLE, None),
        };
        let column = Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()?;
        Ok(Arc::new(column))
    });
    Type::group_type_builder("connection")
        .with_fields(columns.collect::<Result<_, ParquetError>>()?)
        .build()
}

/// Writes the values of column `at`.
fn write_column(
    column: &mut SerializedColumnWriter<'_>,
    rows: &[Row],
    at: usize,
) -> Result<(), ParquetError> {
    let cells = || rows.iter().map(|row| row.get(at).and_then(Option::as_ref));
    // The definition level is 1 for a value and 0 for null.
    let levels: Vec<i16> = cells().map(|cell| cell.is_some().into()).collect();
    let values = || cells().flatten();
    match COLUMNS.get(at).map(|(_, cell)| cell) {
        Some(Cell::Text(_)) => {
            let texts: Vec<_> = values()
                .filter_map(|value| match value {
                    Value::Text(text) => Some(ByteArray::from(text.as_str())),
                    _ => None,
                })
                .collect();
            let column = column.typed::<ByteArrayType>();
            column.write_batch(&texts, Some(&levels), None)?;
        }
        Some(Cell::Whole(_) | Cell::Time(_)) => {
            let wholes: Vec<_> = values()
                .filter_map(|value| match value {
                    // Parquet stores the bits of unsigned integers in signed ones (LogicalTypes.md
                    // of the format).
                    Value::Whole(whole) => Some(whole.cast_signed()),
                    _ => None,
                })
                .collect();
            let column = column.typed::<Int64Type>();
            column.write_batch(&wholes, Some(&levels), None)?;
        }
        Some(Cell::Figure(_)) => {
            let figures: Vec<_> = values()
                .filter_map(|value| match value {
                    Value::Figure(figure) => Some(*figure),
                    _ => None,
                })
                .collect();
            let column = column.typed::<DoubleType>();
            column.write_batch(&figures, Some(&levels), None)?;
        }
        None => {}
    }
    Ok(())
}

// === impl Parquet ===

impl fmt::Debug for Parquet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parquet = f.debug_struct("Parquet");
        parquet.field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Parquet {
    /// Writes the rows in memory as a group.
    fn write_group(&mut self) -> Result<(), ParquetError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            write_column(&mut column, &self.pending, at)?;
            column.close()?;
            at += 1;
        }
        group.close()?;
        self.pending.clear();
        self.pending_bytes = 0;
        Ok(())
    }
}

impl Body for Parquet {
    type Entry<'a> = Row;

    const SUFFIX: &'static str = ".parquet";
    // The file's index is at its end.
    const IS_READABLE_AT_ONCE: bool = false;

    fn begin(file: File) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("taut {}", env!("CARGO_PKG_VERSION")))
            .build();
        let schema = Arc::new(schema()?);
        Ok(Self {
            writer: SerializedFileWriter::new(file, schema, Arc::new(properties))?,
            pending: Vec::new(),
            pending_bytes: 0,
            rows: 0,
        })
    }

    fn length(&self) -> u64 {
        self.writer.bytes_written() as u64 + self.pending_bytes
    }

    fn length_of(row: &Row) -> u64 {
        let of = |value: &Value| match value {
            Value::Text(text) => text.len() as u64,
            Value::Whole(_) | Value::Figure(_) => 8,
        };
        row.iter().flatten().map(of).sum()
    }

    fn at_stake(&self) -> u64 {
        self.rows
    }

    fn write(&mut self, row: Row) -> io::Result<()> {
        self.rows += 1;
        self.pending_bytes += Self::length_of(&row);
        self.pending.push(row);
        if self.pending.len() >= GROUP {
            self.write_group()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn close(mut self) -> io::Result<()> {
        self.write_group()?;
        self.writer.close()?;
        Ok(())
    }

    fn give_up(self) {}
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    use super::*;
    use crate::observer::Tracked;
    use crate::tcp_settings::TcpSettings;
    use crate::verdict::{Confidence, Verdict};
    use crate::watch::files::{Files, Rotation};
    use crate::watch::{Event, Figures, Life, Report};
    use crate::window::tests::sample;

    const ROTATION: Rotation = Rotation {
        size: 1 << 30,
        time: Duration::from_secs(60),
        keep: 10,
    };

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    /// Returns the row of a connection with `acked` acknowledged bytes.
    fn record(now: SystemTime, acked: u64) -> Row {
        record_with(now, acked, None)
    }

    fn record_with(now: SystemTime, acked: u64, verdict: Option<Verdict>) -> Row {
        let mut tracked = Tracked::only("blue".into(), sample(1000, |_| {}));
        let end = sample(6500, |info| {
            (info.segs_out, info.bytes_acked) = (Some(9), Some(acked));
        });
        tracked.finish(end.at, Some(end.connection), None);
        let mut life = Life {
            since: Duration::from_secs(1),
            ..Life::default()
        };
        life.limited[Factor::Loss.index()] = 2.5;
        let report = Report {
            event: Event::End,
            cookie: u64::MAX,
            tracked: &tracked,
            process: None,
            life: Some(&life),
            verdict,
            figures: Some(Figures::End),
            ended: None,
        };
        row(&Line::of(&report, now))
    }

    /// Returns the rows of all files by column name, as an independent reader sees them.
    fn read(dir: &Path) -> Vec<BTreeMap<String, Field>> {
        let mut paths: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "parquet"))
            .collect();
        paths.sort();
        let mut rows = Vec::new();
        for path in paths {
            let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
            for row in reader.get_row_iter(None).unwrap() {
                let row = row.unwrap();
                let columns = row.get_column_iter();
                rows.push(columns.map(|(k, v)| (k.clone(), v.clone())).collect());
            }
        }
        rows
    }

    #[test]
    fn a_row_has_what_a_line_has() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Parquet>::in_dir(dir.path(), ROTATION).unwrap();
        files.write(at(1), record(at(1), 77)).unwrap();
        assert_eq!(read(dir.path()).len(), 0, "it is not whole yet");
        files.close().unwrap();
        let rows = read(dir.path());
        assert_eq!(rows.len(), 1);
        let text = |text: &str| Field::Str(text.to_owned());
        for (column, is) in [
            ("time", Field::TimestampMillis(1000)),
            ("event", text("end")),
            ("figures", text("end")),
            ("seconds", Field::Double(5.5)),
            ("cookie", Field::ULong(u64::MAX)),
            ("netns", text("blue")),
            ("local_address", text("192.0.2.1")),
            ("local_port", Field::ULong(1000)),
            ("process", Field::Null),
            ("factor", Field::Null),
            ("limited_loss", Field::Double(2.5)),
            ("limited_queue", Field::Null),
            ("HCThruOctetsAcked", Field::Double(77.0)),
        ] {
            assert_eq!(rows[0][column], is, "{column}");
        }
        assert_eq!(rows[0].len(), COLUMNS.len(), "no name stands twice");
    }

    #[test]
    fn a_row_has_the_verdict_and_its_gain() {
        let gain = |is_lower_bound, next| Gain {
            rate: 5e6,
            is_lower_bound,
            next,
        };
        let verdict = |gain| Verdict {
            factor: Factor::SendBuffer,
            confidence: Confidence::Sure,
            weight: 0.9,
            shares: vec![(Factor::SendBuffer, 0.9)],
            causes: Vec::new(),
            gain,
            settings: TcpSettings::default(),
        };
        let known = Some(gain(false, Some(Factor::Link)));
        let at_least = Some(gain(true, None));
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Parquet>::in_dir(dir.path(), ROTATION).unwrap();
        for gain in [known, at_least, None] {
            let row = record_with(at(1), 77, Some(verdict(gain)));
            files.write(at(1), row).unwrap();
        }
        files.close().unwrap();
        let rows = read(dir.path());
        let column = |name: &str| -> Vec<_> { rows.iter().map(|row| row[name].clone()).collect() };
        let (text, rate) = (|text: &str| Field::Str(text.to_owned()), Field::Double(5e6));
        assert_eq!(column("factor"), vec![text("send-buffer"); 3]);
        assert_eq!(column("gain_rate"), [rate.clone(), rate, Field::Null]);
        assert_eq!(
            column("gain_is_lower_bound"),
            [Field::ULong(0), Field::ULong(1), Field::Null]
        );
        assert_eq!(
            column("gain_next"),
            [text("link"), Field::Null, Field::Null]
        );
    }

    #[test]
    fn the_guide_has_every_column() {
        let guide = include_str!("../../../../docs/observe.md");
        let (_, guide) = guide.split_once("`--format parquet` writes").unwrap();
        for (name, _) in columns() {
            // The guide gives an example of these.
            if !name.starts_with("limited_") {
                assert!(guide.contains(&format!("`{name}`")), "`{name}`");
            }
        }
    }

    #[test]
    fn rows_stay_in_order_over_groups_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Parquet>::in_dir(dir.path(), ROTATION).unwrap();
        let all = GROUP as u64 + 10;
        for number in 0..all {
            files.write(at(0), record(at(0), number)).unwrap();
        }
        // No more rows arrive, and the file's time is over.
        files.flush(at(59)).unwrap();
        assert_eq!(read(dir.path()).len(), 0);
        files.flush(at(60)).unwrap();
        assert_eq!(read(dir.path()).len() as u64, all);
        files.write(at(61), record(at(61), all)).unwrap();
        files.close().unwrap();
        let acked = |row: &BTreeMap<String, Field>| row["HCThruOctetsAcked"].clone();
        let read: Vec<_> = read(dir.path()).iter().map(acked).collect();
        let written: Vec<_> = (0..=all).map(|n| Field::Double(n as f64)).collect();
        assert_eq!(read, written);
    }

    #[test]
    fn a_file_is_about_as_long_as_it_may_be_and_one_that_was_not_closed_counts_among_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let rotation = Rotation {
            size: 3 * Parquet::length_of(&record(at(0), 1)) + 10,
            keep: 2,
            ..ROTATION
        };
        std::fs::write(
            dir.path()
                .join("connections-1960-01-01T00-00-00Z.parquet.part"),
            "",
        )
        .unwrap();
        let mut files = Files::<Parquet>::in_dir(dir.path(), rotation).unwrap();
        for second in 0..9 {
            files.write(at(second), record(at(second), second)).unwrap();
        }
        files.close().unwrap();
        let names = std::fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 2);
        assert!(read(dir.path()).len() < 9);
        assert_eq!(
            read(dir.path()).last().unwrap()["time"],
            Field::TimestampMillis(8000)
        );
    }

    #[test]
    fn with_a_file_that_cannot_be_closed_all_of_it_is_lost_and_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::<Parquet>::in_dir(dir.path(), ROTATION).unwrap();
        for _ in 0..3 {
            files.write(at(0), record(at(0), 1)).unwrap();
        }
        // Removes the file while it is being written.
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert_eq!(files.close().unwrap_err().entries, 3);
        files.write(at(0), record(at(0), 1)).unwrap();
        files.close().unwrap();
        assert_eq!(read(dir.path()).len(), 1);
    }
}
