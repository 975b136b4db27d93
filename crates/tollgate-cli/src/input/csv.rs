//! CSV with a time and a key: columns by the names in the first line, or time and key first if it has none.

use super::excerpt::beginning;
use super::record::{Field, FieldNames, Record};
use super::time;

/// The most columns that are looked at; those beyond are passed over.
const COLUMNS_MAX: usize = 64;

/// Reads lines; knows which column is which.
#[derive(Debug)]
pub(crate) struct CsvLines {
    separator: u8,
    /// The column of each field.
    columns: [Option<usize>; 6],
    /// What they are called.
    names: Vec<(Field, String)>,
    cells: Cells,
}

/// The cells of one line, unquoted.
#[derive(Debug, Default)]
struct Cells {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Cells {
    fn split(&mut self, line: &[u8], separator: u8) {
        let mut reader = csv_core::ReaderBuilder::new().delimiter(separator).build();
        // Unquoting only shortens.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(COLUMNS_MAX, 0);
        let (result, read, written, cells) = reader.read_record(line, &mut self.text, &mut self.ends);
        let mut cells = cells;
        if matches!(result, csv_core::ReadRecordResult::InputEmpty) {
            let rest = reader.read_record(&line[read..], &mut self.text[written..], &mut self.ends[cells..]);
            cells += rest.3;
        }
        self.ends.truncate(cells);
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let start = if index == 0 { 0 } else { *self.ends.get(index - 1)? };
        self.text.get(start..*self.ends.get(index)?).map(<[u8]>::trim_ascii)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

impl CsvLines {
    /// Makes sense of the first line. Also says whether it is a heading rather than a request.
    pub(crate) fn new(first: &[u8], names: &FieldNames) -> Result<(Self, bool), String> {
        let separator = [b',', b'\t', b';']
            .into_iter()
            .max_by_key(|&separator| (memchr::memchr_iter(separator, first).count(), separator == b','))
            .unwrap_or(b',');
        let mut cells = Cells::default();
        cells.split(first, separator);
        if cells.len() < 2 {
            return Err("there is only one column: a time and a key are needed".to_owned());
        }
        let mut columns = [None; 6];
        let mut found = Vec::new();
        let is_heading = cells.get(0).and_then(time::parse_any).is_none();
        if is_heading {
            let mut ranks = [u8::MAX; 6];
            for index in 0..cells.len() {
                let name = String::from_utf8_lossy(cells.get(index).unwrap_or_default());
                let better = names.field_of(&name).filter(|&(field, rank)| rank < ranks[field as usize]);
                if let Some((field, rank)) = better {
                    (ranks[field as usize], columns[field as usize]) = (rank, Some(index));
                }
            }
            if let Some(field) = names.chosen().iter().find(|&&field| columns[field as usize].is_none()) {
                let wanted: Vec<_> = names.of(*field).collect();
                return Err(format!(
                    "no column of the first line is called `{}`, as `--field {}=…` says",
                    wanted.join("` or `"),
                    field.name()
                ));
            }
            if columns[Field::Time as usize].is_none() {
                return Err(
                    "no column of the first line is a time: name it with `--field time=COLUMN`".to_owned()
                );
            }
            for field in Field::ALL {
                let name = columns[field as usize].and_then(|column| cells.get(column));
                found.extend(name.map(|name| (field, beginning(name))));
            }
        } else {
            if !names.chosen().is_empty() {
                return Err("the first line is no heading: `--field` has no names to go by".to_owned());
            }
            for (field, column) in [(Field::Time, 0), (Field::Ip, 1), (Field::Key, 1)] {
                columns[field as usize] = Some(column);
                found.push((field, format!("column {}", column + 1)));
            }
        }
        Ok((Self { separator, columns, names: found, cells }, is_heading))
    }

    /// Which columns are read, and what they are called.
    pub(crate) fn found(&self) -> &[(Field, String)] {
        &self.names
    }

    pub(crate) fn parse(&mut self, line: &[u8]) -> Result<Record<'_>, String> {
        self.cells.split(line, self.separator);
        let get = |field: Field| self.columns[field as usize].and_then(|column| self.cells.get(column));
        let time = get(Field::Time).ok_or("the line ends before the time's column")?;
        let at_ns = time::read_any(time)?;
        Ok(Record {
            at_ns,
            ip: get(Field::Ip).unwrap_or_default(),
            user: get(Field::User).unwrap_or_default(),
            method: get(Field::Method).unwrap_or_default(),
            path: get(Field::Path).unwrap_or_default(),
            key: get(Field::Key).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(first: &str, options: &[&str]) -> Result<(CsvLines, bool), String> {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        CsvLines::new(first.as_bytes(), &FieldNames::new(&options).expect("options"))
    }

    #[test]
    fn columns_are_found_by_name() {
        let (mut csv, heading) = lines("Path,Timestamp,client,ip", &[]).expect("heading");
        assert!(heading);
        let record = csv.parse(br#""/a,""b""",2015-05-17T10:05:03Z,"x",203.0.113.7"#).expect("line");
        assert_eq!((record.path, record.ip), (&b"/a,\"b\""[..], &b"203.0.113.7"[..]));

        let (mut csv, _) = lines("when;who", &["time=when", "key=who"]).expect("given");
        assert_eq!(csv.parse(b"1431857103;bob").expect("line").key, b"bob");

        let (mut csv, _) = lines("time,client.ip", &["ip=client.ip"]).expect("a dot");
        assert_eq!(csv.parse(b"1431857103,::1").expect("line").ip, b"::1");
        assert_eq!(csv.found()[1], (Field::Ip, "client.ip".to_owned()));
    }

    #[test]
    fn without_a_heading_time_and_key_come_first() {
        let (mut csv, heading) = lines("1431857103,alice", &[]).expect("no heading");
        assert!(!heading);
        let record = csv.parse(b"1431857104.5,bob").expect("line");
        assert_eq!(
            (record.at_ns, record.ip, record.key),
            (1_431_857_104_500_000_000, &b"bob"[..], &b"bob"[..])
        );
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(lines("one", &[]).expect_err("one column").contains("only one column"));
        assert!(lines("a,b", &[]).expect_err("no time").contains("--field time=COLUMN"));
        let missing = lines("time,ip", &["user=name"]).expect_err("no such column");
        assert!(missing.contains("called `name`") && missing.contains("`--field user=…`"), "{missing}");
        assert!(lines("1431857103,x", &["key=k"]).expect_err("no heading").contains("no heading"));
        let (mut csv, _) = lines("key,time", &[]).expect("heading");
        assert!(csv.parse(b"x").expect_err("short").contains("ends before"));
        assert!(csv.parse(b"x,soon").expect_err("no time").contains("`soon` is no time"));
    }
}
