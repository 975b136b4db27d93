//! Traffic from a seed, written as a log.

use crate::args::{GenerateArgs, GenerateFormat};
use crate::failure::{DONE, Failure};
use crate::input::time::{Moment, NS_PER_S};
use crate::progress::Progress;
use crate::report::table::grouped;
use crate::traffic::{Details, Event, Plan, Traffic};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

const AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36";

pub(crate) fn run(args: &GenerateArgs, out: &mut impl Write) -> Result<u8, Failure> {
    let plan = Plan {
        seed: args.seed,
        requests: args.requests,
        readers: args.clients,
        span_ns: args.duration * NS_PER_S,
    };
    let name = args.output.as_deref().unwrap_or(Path::new("")).to_string_lossy().to_lowercase();
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    let format = args.format.unwrap_or(match bare.rsplit('.').next() {
        Some("json" | "jsonl" | "ndjson") => GenerateFormat::Json,
        Some("csv") => GenerateFormat::Csv,
        _ => GenerateFormat::Combined,
    });
    let Some(path) = &args.output else {
        write_all(plan, format, out)?;
        return Ok(DONE);
    };
    let failed = |error: io::Error| Failure::file(path, "write", &error);
    let file = BufWriter::with_capacity(1 << 16, File::create(path).map_err(failed)?);
    if name.ends_with(".gz") {
        let mut packed = GzEncoder::new(file, Compression::fast());
        write_all(plan, format, &mut packed).map_err(failed)?;
        packed.finish().and_then(|mut file| file.flush()).map_err(failed)?;
    } else {
        let mut file = file;
        write_all(plan, format, &mut file).and_then(|()| file.flush()).map_err(failed)?;
    }
    writeln!(out, "{} requests in {}", grouped(plan.requests), path.display())?;
    Ok(DONE)
}

fn write_all(plan: Plan, format: GenerateFormat, out: &mut impl Write) -> io::Result<()> {
    let mut progress = Progress::new("writing", Some(plan.requests));
    let mut details = Details::default();
    let mut time = TimeText::default();
    let mut line = Vec::new();
    if format == GenerateFormat::Csv {
        writeln!(out, "time,ip,user,method,path,status")?;
    }
    for (event, number) in Traffic::new(plan).zip(1..) {
        details.tell(&event);
        line.clear();
        write_line(format, &event, &details, &mut time, &mut line)?;
        out.write_all(&line)?;
        if number % 4_096 == 0 {
            progress.at(number, || format!("{} requests", grouped(number)));
        }
    }
    Ok(())
}

fn write_line(
    format: GenerateFormat,
    event: &Event,
    details: &Details,
    time: &mut TimeText,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let Details { ip, user, path, method, status, bytes } = details;
    let put = |out: &mut Vec<u8>, parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    match format {
        GenerateFormat::Clf | GenerateFormat::Combined => {
            let user: &[u8] = if user.is_empty() { b"-" } else { user };
            let time = time.clf(event.at_ns);
            put(
                out,
                &[ip, b" - ", user, b" [", time, b"] \"", method.as_bytes(), b" ", path, b" HTTP/1.1\" "],
            );
            write!(out, "{status} {bytes}")?;
            if format == GenerateFormat::Combined {
                write!(out, " \"-\" \"{AGENT}\"")?;
            }
        }
        GenerateFormat::Json => {
            put(out, &[b"{\"time\":\"", time.iso(event.at_ns), b"\",\"ip\":\"", ip, b"\",\"user\":\"", user]);
            put(out, &[b"\",\"method\":\"", method.as_bytes(), b"\",\"path\":\"", path]);
            write!(out, "\",\"status\":{status}}}")?;
        }
        GenerateFormat::Csv => {
            put(out, &[time.iso(event.at_ns), b",", ip, b",", user, b",", method.as_bytes(), b",", path]);
            write!(out, ",{status}")?;
        }
    }
    out.push(b'\n');
    Ok(())
}

/// The text of a time; many requests have the same.
#[derive(Debug, Default)]
struct TimeText {
    second: u64,
    text: Vec<u8>,
}

impl TimeText {
    fn clf(&mut self, at_ns: u64) -> &[u8] {
        let second = at_ns / NS_PER_S;
        if self.second != second {
            self.second = second;
            let moment = Moment::of(second * NS_PER_S);
            let Moment { year, day, hour, minute, second, .. } = moment;
            let month = moment.month_name();
            self.text.clear();
            let _ = write!(self.text, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000");
        }
        &self.text
    }

    fn iso(&mut self, at_ns: u64) -> &[u8] {
        // To the millisecond, as most logs are.
        self.text.clear();
        let _ = write!(self.text, "{}", Moment::of(at_ns - at_ns % 1_000_000));
        &self.text
    }
}
