//! Results, kept as JSON, and their table.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tautline_lab::kernels::Arch;

use crate::kernels::Kernel;
use crate::libtest::Counts;

/// Result of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelResult {
    /// Name of the kernel's package and suite.
    pub(crate) name: String,
    /// Where it comes from, in words.
    pub(crate) origin: String,
    pub(crate) arch: String,
    /// `uname -r` and `uname -v` of the guest; empty if it did not start.
    pub(crate) release: String,
    pub(crate) version: String,
    /// `qemu-system-… --version`.
    pub(crate) qemu: String,
    /// Why nothing was run.
    pub(crate) skipped: Option<String>,
    /// Cells that were run.
    pub(crate) cells: Vec<CellResult>,
    /// Parts that the guest lacks, and other things to know.
    pub(crate) notes: Vec<String>,
}

/// Result of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellResult {
    pub(crate) driver: String,
    pub(crate) mode: String,
    pub(crate) what: String,
    pub(crate) counts: Counts,
    pub(crate) seconds: f64,
    /// Reasons of what was skipped.
    pub(crate) skipped: Vec<String>,
    /// Why it failed as a whole.
    pub(crate) problem: Option<String>,
}

impl CellResult {
    /// Whether it shows that something does not work.
    pub(crate) fn failed(&self) -> bool {
        self.problem.is_some() || self.counts.failed > 0
    }

    /// Column of the table.
    fn column(&self) -> String {
        match (self.driver.as_str(), self.mode.as_str()) {
            ("", _) => "loads".to_owned(),
            ("KVM", _) => "guests".to_owned(),
            ("veth", _) if self.what == "demo" => "demo".to_owned(),
            ("veth", _) => "veth".to_owned(),
            (driver, "generic") => format!("{driver} generic"),
            (driver, _) => format!("{driver} native"),
        }
    }
}

impl KernelResult {
    /// The result of a kernel under which nothing was run yet.
    pub(crate) fn of(kernel: &Kernel) -> KernelResult {
        KernelResult {
            name: kernel.name(),
            origin: kernel.origin.clone(),
            arch: kernel.job.arch.name().to_owned(),
            release: String::new(),
            version: String::new(),
            qemu: String::new(),
            skipped: None,
            cells: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The result of a kernel that cannot be had.
    pub(crate) fn skipped(kernel: &Kernel, reason: &str) -> KernelResult {
        KernelResult {
            skipped: Some(reason.to_owned()),
            ..Self::of(kernel)
        }
    }

    /// Whether a test failed or the guest did.
    pub(crate) fn failed(&self) -> bool {
        self.cells.iter().any(CellResult::failed)
    }

    /// The sum of all cells.
    pub(crate) fn counts(&self) -> Counts {
        sum(self.cells.iter())
    }

    /// Takes the place of an older result, whose cells it keeps where it has none of that name, if the kernel is the
    /// same.
    pub(crate) fn added_to(mut self, older: KernelResult) -> KernelResult {
        if (&older.release, &older.version) != (&self.release, &self.version) {
            return self;
        }
        let key = |cell: &CellResult| (cell.driver.clone(), cell.mode.clone(), cell.what.clone());
        let kept = older
            .cells
            .into_iter()
            .filter(|old| self.cells.iter().all(|new| key(new) != key(old)))
            .collect::<Vec<_>>();
        self.cells.splice(0..0, kept);
        self
    }

    fn file(&self) -> String {
        format!("{}.json", self.name.replace('/', "_"))
    }

    /// The result of the same kernel that a directory has.
    pub(crate) fn older(&self, directory: &Path) -> Option<KernelResult> {
        serde_json::from_slice(&fs::read(directory.join(self.file())).ok()?).ok()
    }

    /// Writes it into a directory.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("a result has only string keys");
        fs::write(directory.join(self.file()), text + "\n")
    }
}

fn sum<'a>(cells: impl Iterator<Item = &'a CellResult>) -> Counts {
    cells.fold(Counts::default(), |all, cell| Counts {
        passed: all.passed + cell.counts.passed,
        failed: all.failed + cell.counts.failed.max(cell.problem.is_some().into()),
        skipped: all.skipped + cell.counts.skipped,
    })
}

/// Reads all results of a directory.
pub(crate) fn read_all(directory: &Path) -> io::Result<Vec<KernelResult>> {
    let mut paths: Vec<_> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    paths.sort();
    let mut results = Vec::new();
    for path in paths {
        results.push(serde_json::from_slice(&fs::read(path)?).map_err(io::Error::other)?);
    }
    Ok(results)
}

/// The columns of the table, in order; a column that nothing fills is left out.
const COLUMNS: [&str; 10] = [
    "loads",
    "veth",
    "igb native",
    "igb generic",
    "e1000e native",
    "e1000e generic",
    "virtio_net native",
    "virtio_net generic",
    "demo",
    "guests",
];

/// A table in Markdown: a line for each kernel; in each column how many tests passed, failed and were skipped.
pub(crate) fn table(results: &[KernelResult]) -> String {
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|column| {
            let mut cells = results.iter().flat_map(|result| &result.cells);
            cells.any(|cell| cell.column() == *column)
        })
        .collect();
    let mut text = format!("| kernel | | {} |\n", columns.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(columns.len()));
    for result in results {
        let mut by_column: BTreeMap<String, Vec<&CellResult>> = BTreeMap::new();
        for cell in &result.cells {
            by_column.entry(cell.column()).or_default().push(cell);
        }
        let cells: Vec<String> = columns
            .iter()
            .map(|column| match by_column.get(*column) {
                None => "–".to_owned(),
                Some(cells) => figures(sum(cells.iter().copied())),
            })
            .collect();
        let kernel = match &result.skipped {
            Some(reason) => format!("SKIPPED: {reason}"),
            None => result.release.clone(),
        };
        let title = format!("{}, {}", result.origin, short(&result.arch));
        text += &format!("| {title} | {kernel} | {} |\n", cells.join(" | "));
    }
    text
}

fn short(arch: &str) -> String {
    arch.parse::<Arch>()
        .map_or_else(|_| arch.to_owned(), |arch| arch.debian_name().to_owned())
}

/// `19`, or `17, 2 failed, 1 skipped`.
fn figures(counts: Counts) -> String {
    let mut text = counts.passed.to_string();
    if counts.failed > 0 {
        text += &format!(", **{} failed**", counts.failed);
    }
    if counts.skipped > 0 {
        text += &format!(", {} skipped", counts.skipped);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(driver: &str, mode: &str, what: &str, passed: u32, failed: u32) -> CellResult {
        CellResult {
            driver: driver.to_owned(),
            mode: mode.to_owned(),
            what: what.to_owned(),
            counts: Counts {
                passed,
                failed,
                skipped: 0,
            },
            seconds: 1.0,
            skipped: Vec::new(),
            problem: None,
        }
    }

    fn result(cells: Vec<CellResult>) -> KernelResult {
        let kernel = crate::kernels::all().swap_remove(1);
        KernelResult {
            release: "6.1.0-50-amd64".to_owned(),
            version: "#1".to_owned(),
            cells,
            ..KernelResult::of(&kernel)
        }
    }

    #[test]
    fn the_table_has_the_columns_that_were_run() {
        let cells = vec![
            cell("", "", "every program loads", 1, 0),
            cell("igb", "native, zero-copy", "twin", 2, 1),
            cell("igb", "native, zero-copy", "conformance", 38, 0),
        ];
        let text = table(&[result(cells)]);
        assert_eq!(
            text,
            "| kernel | | loads | igb native |\n|---|---|---|---|\n| Debian 12, amd64 | 6.1.0-50-amd64 | 1 | 40, **1 failed** |\n"
        );
    }

    #[test]
    fn a_whole_cell_that_failed_is_a_failure() {
        let mut broken = cell("veth", "native", "demo", 0, 0);
        broken.problem = Some("killed".to_owned());
        let result = result(vec![broken]);
        assert!(result.failed());
        assert_eq!(result.counts().failed, 1);
    }

    #[test]
    fn a_later_run_replaces_cells_of_the_same_kernel() {
        let older = result(vec![cell("", "", "a", 1, 0), cell("veth", "", "b", 1, 1)]);
        let newer = result(vec![cell("veth", "", "b", 2, 0)]);
        let both = newer.clone().added_to(older.clone());
        assert_eq!((both.cells.len(), both.failed()), (2, false));
        let other = KernelResult {
            release: "6.1.0-51-amd64".to_owned(),
            ..older
        };
        assert_eq!(newer.clone().added_to(other), newer);
    }
}
