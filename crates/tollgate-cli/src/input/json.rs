//! JSON lines: an object a line, its fields under usual or given names, nested ones by a dotted name.

use super::excerpt::beginning;
use super::record::{Field, FieldNames, Record};
use super::time;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// How deep objects are followed; names are no deeper.
const DEPTH_MAX: usize = 8;

/// Reads lines; keeps what a line's values are copied to when they have escapes in them.
#[derive(Debug)]
pub(crate) struct JsonLines {
    names: FieldNames,
    values: Values,
}

/// The best value so far for each field, with its rank.
#[derive(Debug, Default)]
struct Values {
    text: [Vec<u8>; 6],
    rank: [Option<u8>; 6],
    /// For each field a bit for each of its names that was found in any line.
    found: [u64; 6],
}

impl Values {
    fn put(&mut self, (field, rank): (Field, u8), value: &[u8]) {
        let index = field as usize;
        if self.rank[index].is_none_or(|known| rank < known) {
            self.rank[index] = Some(rank);
            self.text[index].clear();
            self.text[index].extend_from_slice(value);
        }
    }
}

impl JsonLines {
    pub(crate) fn new(names: FieldNames) -> Self {
        Self { names, values: Values::default() }
    }

    /// The fields that were found so far, and under which names.
    pub(crate) fn found(&self) -> Vec<(Field, String)> {
        let names = |field: Field| {
            let found = self.values.found[field as usize];
            let names = self.names.of(field).zip(0..).filter(move |&(_, place)| found & 1 << place != 0);
            names.map(move |(name, _)| (field, name.to_owned()))
        };
        Field::ALL.into_iter().flat_map(names).collect()
    }

    pub(crate) fn parse(&mut self, line: &[u8]) -> Result<Record<'_>, String> {
        self.values.rank = [None; 6];
        self.values.text.iter_mut().for_each(Vec::clear);
        let mut json = serde_json::Deserializer::from_slice(line);
        let object = Object { names: &self.names, values: &mut self.values, within: u64::MAX, depth: 0 };
        object
            .deserialize(&mut json)
            .and_then(|()| json.end())
            .map_err(|error| format!("not JSON: {}", beginning(error.to_string().as_bytes())))?;
        let Values { rank, found, text } = &mut self.values;
        let places = rank.iter().zip(found);
        places.for_each(|(rank, found)| *found |= rank.map_or(0, |rank| 1 << (rank / 2)));
        let [time, ip, user, method, path, key] = text;
        if time.is_empty() {
            return Err("no field for the time: name it with `--field time=NAME`".to_owned());
        }
        let at_ns = time::read_any(time)?;
        Ok(Record { at_ns, ip, user, method, path, key })
    }
}

/// An object of the line, and the names that lead into it.
struct Object<'a> {
    names: &'a FieldNames,
    values: &'a mut Values,
    within: u64,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(Name(name)) = map.next_key_seed(NameSeed)? {
            let (ends, within) = self.names.step(self.within, self.depth, &name);
            let within = if self.depth == DEPTH_MAX { 0 } else { within };
            if ends.is_none() && within == 0 {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let inner = Object { names: self.names, values: self.values, within, depth: self.depth + 1 };
            map.next_value_seed(Value { field: ends, inner })?;
        }
        Ok(())
    }
}

/// A key, borrowed where it has no escapes.
struct Name<'de>(Cow<'de, str>);
struct NameSeed;

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Name<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name<'de>, D::Error> {
        struct Borrowing;
        impl<'de> Visitor<'de> for Borrowing {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrowing)
    }
}

/// A value that may be a field, as a string, a number or a truth, and may be an object that leads to others.
struct Value<'a> {
    field: Option<(Field, u8)>,
    inner: Object<'a>,
}

impl Value<'_> {
    fn take(self, text: &[u8]) {
        if let Some(field) = self.field {
            self.inner.values.put(field, text);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.take(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.take(value.to_string().as_bytes());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.take(value.to_string().as_bytes());
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.take(value.to_string().as_bytes());
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.take(value.as_bytes());
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<(), M::Error> {
        self.inner.visit_map(map)
    }

    fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut seq: S) -> Result<(), S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(options: &[&str]) -> JsonLines {
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        JsonLines::new(FieldNames::new(&options).expect("options"))
    }

    #[test]
    fn reads_usual_and_given_names() {
        let mut usual = lines(&[]);
        let record = usual
            .parse(br#"{"status":200,"ts":1431857103.25,"request":{"remote_ip":"203.0.113.7","uri":"/\u0061","headers":{"ip":["x"]}}}"#)
            .expect("a Caddy line");
        assert_eq!(record.at_ns, 1_431_857_103_250_000_000);
        assert_eq!((record.ip, record.path), (&b"203.0.113.7"[..], &b"/a"[..]));

        let mut given = lines(&["time=when", "key=auth.token", "ip=who"]);
        let record = given
            .parse(br#"{"time":"no","when":"2015-05-17T10:05:03Z","ip":"1.1.1.1","who":"2.2.2.2","auth":{"token":17}}"#)
            .expect("given names");
        assert_eq!((record.ip, record.key), (&b"2.2.2.2"[..], &b"17"[..]));
    }

    #[test]
    fn the_likelier_name_wins_in_any_order() {
        for line in [
            r#"{"time":1431857103,"client":"x","ip":"1.1.1.1"}"#,
            r#"{"ip":"1.1.1.1","client":"x","ts":1431857103}"#,
        ] {
            assert_eq!(lines(&[]).parse(line.as_bytes()).expect(line).ip, b"1.1.1.1");
        }
    }

    #[test]
    fn a_dot_in_a_name_may_be_part_of_it_or_lead_into_an_object() {
        let mut dotted = lines(&["ip=client.ip", "key=user.team.id", "time=@t"]);
        for (line, ip, key) in [
            (r#"{"@t":1431857103,"client.ip":"1.1.1.1"}"#, "1.1.1.1", ""),
            (r#"{"@t":1431857103,"client":{"ip":"2.2.2.2"},"client.ip":"1.1.1.1"}"#, "1.1.1.1", ""),
            (r#"{"@t":1431857103,"client":{"ip":"2.2.2.2","x":{}}}"#, "2.2.2.2", ""),
            (r#"{"@t":1431857103,"user":{"team.id":7}}"#, "", "7"),
            // `user` is a usual name of a field, too.
            (r#"{"@t":1431857103,"user":{"team":{"id":8,"no":1}}}"#, "", "8"),
        ] {
            let record = dotted.parse(line.as_bytes()).expect(line);
            assert_eq!((record.ip, record.key), (ip.as_bytes(), key.as_bytes()), "{line}");
        }
        let found: Vec<_> = dotted.found().into_iter().map(|(_, name)| name).collect();
        assert_eq!(found, ["@t", "client.ip", "user.team.id"]);
    }

    #[test]
    fn the_host_of_a_server_is_no_client() {
        let mut usual = lines(&[]);
        let record = usual.parse(br#"{"ts":1431857103,"host":"www.example"}"#).expect("a line");
        assert_eq!(record.ip, b"");
    }

    #[test]
    fn says_what_is_wrong() {
        for (line, cause) in [
            (r#"{"ip":"1.1.1.1"}"#, "no field for the time"),
            (r#"{"time":"soon"}"#, "`soon` is no time"),
            (r#"{"time":1431857103"#, "not JSON"),
            ("[1]", "not JSON"),
            (r#"{"time":1431857103} x"#, "not JSON"),
        ] {
            let error = lines(&[]).parse(line.as_bytes()).expect_err(line);
            assert!(error.contains(cause), "{line}: {error}");
        }
        // What the log says is quoted shortly, and orders nothing of a terminal.
        let long = "x".repeat(1 << 20);
        for line in [format!(r#"{{"time":"\u001b[2J{long}"}}"#), format!(r#""\u001b]0;{long}""#)] {
            let error = lines(&[]).parse(line.as_bytes()).expect_err("no time");
            assert!(error.len() < 500 && !error.contains(char::is_control), "{} bytes", error.len());
        }
    }
}
