//! tollgate beside other limiters: the same keys, the same rule, in one process, in interleaved rounds.
//!
//! `cargo bench --bench versus` prints ratios over governor's default beside the aims, and writes
//! `results/versus.md` and charts; `-- --quick` takes less than two minutes and writes `results/versus-quick.md`.
//! `-- "1 M"` measures the cases with that in their name, `-- memory`, `-- growing` and `-- cleaning` the rest.

#[path = "versus/cases.rs"]
mod cases;
#[path = "versus/memory.rs"]
mod memory;
mod peers;
#[path = "versus/report.rs"]
mod report;
#[path = "versus/speed.rs"]
mod speed;
#[path = "versus/stalls.rs"]
mod stalls;

use report::Report;
use tollgate_bench::{Scale, filter, page};

fn main() {
    if memory::is_child() {
        return;
    }
    let scale = Scale::from_arguments();
    let filter = filter();
    let wanted = |section: &str| filter.as_deref().is_none_or(|filter| section == filter);
    let report = Report {
        scale,
        speed: speed::measure(scale),
        memory: if wanted("memory") { memory::measure(scale) } else { Vec::new() },
        growing: if wanted("growing") { stalls::growing(scale) } else { Vec::new() },
        cleaning: if wanted("cleaning") { stalls::cleaning(scale) } else { Vec::new() },
    };
    println!("{}", report.summary());
    // A part of the cases is no result.
    if filter.is_none() && scale != Scale::Smoke {
        let name = scale.pick("", "versus-quick", "versus");
        for (chart, svg) in report.charts() {
            page::save(&format!("{name}-{chart}.svg"), &svg);
        }
        page::save(&format!("{name}.md"), &report.page(name));
    }
}
