//! Building blocks of reports: one HTML file that needs nothing but itself.
//!
//! No script, no font and no picture is loaded; the page forbids it to the browser as well. Pictures are part of the
//! file, and so is the one script that makes plots answer, which the browser knows by its hash. It follows the reader's
//! light or dark setting, and is laid out for a phone first. All text passes
//! through the template library's escaping (`maud`), so no name that comes from a machine, a
//! network or a file can become markup.
//!
//! Plots are in [`plot`](crate::plot).
//!
//! ```
//! use tautline_report::page::{Level, Page, Table};
//!
//! let mut table = Table::new(["Path", "p50"]);
//! table.row(["udp-poll", "6.40 µs"]);
//! let mut page = Page::new("Round trips", "Two hosts on one machine");
//! page.verdict(Level::Good, "All within 1 ms", &["100,000 round trips a path"]);
//! page.section("Figures", [table.html()]);
//! assert!(page.html().contains("udp-poll"));
//! ```

use crate::date;
use crate::live;
use crate::table::{Cell, in_one_unit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

/// Part of a page: markup that was escaped when it was made.
#[derive(Clone, Debug)]
pub struct Block(pub(crate) Markup);

/// How good a piece of news is. Shown as a word, a sign and a colour, so that no reader depends on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As wished.
    Good,
    /// Works with less than wished.
    Limited,
    /// Does not work, or is not held.
    Bad,
    /// Neither: a remark.
    Note,
}

impl Level {
    fn class(self) -> &'static str {
        match self {
            Level::Good => "good",
            Level::Limited => "limited",
            Level::Bad => "bad",
            Level::Note => "note",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Level::Good => "✓",
            Level::Limited => "!",
            Level::Bad => "✗",
            Level::Note => "i",
        }
    }
}

/// A report in the making.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    subtitle: String,
    body: Vec<Markup>,
}

impl Page {
    /// An empty page. The subtitle says in one line what was measured, where and when.
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>) -> Page {
        Page {
            title: title.into(),
            subtitle: subtitle.into(),
            body: Vec::new(),
        }
    }

    /// A box with the answer in one sentence, and the reasons below it.
    pub fn verdict<R: AsRef<str>>(
        &mut self,
        level: Level,
        answer: &str,
        reasons: &[R],
    ) -> &mut Page {
        self.body.push(html! {
            section class={ "verdict " (level.class()) } {
                p.answer { span.sign aria-hidden="true" { (level.sign()) } " " (answer) }
                @if !reasons.is_empty() {
                    ul { @for reason in reasons { li { (reason.as_ref()) } } }
                }
            }
        });
        self
    }

    /// A heading and what stands below it.
    pub fn section(&mut self, heading: &str, blocks: impl IntoIterator<Item = Block>) -> &mut Page {
        self.body.push(html! {
            section {
                h2 { (heading) }
                @for block in blocks { (block.0) }
            }
        });
        self
    }

    /// The whole file.
    pub fn html(&self) -> String {
        let mut policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:".to_owned();
        let is_live = self.body.iter().any(|part| part.0.contains("data-plot="));
        if is_live {
            let hash = BASE64.encode(Sha256::digest(live::SCRIPT));
            policy += &format!("; script-src 'sha256-{hash}'");
        }
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(policy);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { (PreEscaped(COLOURS)) (PreEscaped(STYLE)) (PreEscaped(DRAWING)) }
                }
                body {
                    main {
                        header {
                            h1 { (self.title) }
                            p.subtitle { (self.subtitle) }
                        }
                        @for part in &self.body { (part) }
                        footer { "Tautline " (env!("CARGO_PKG_VERSION")) ", " (date::now()) }
                    }
                    @if is_live { script { (PreEscaped(live::SCRIPT)) } }
                }
            }
        }
        .into_string()
    }
}

/// A paragraph.
pub fn paragraph(text: &str) -> Block {
    Block(html! { p { (text) } })
}

/// Command or output, in a fixed-width face and with its line breaks.
pub fn verbatim(text: &str) -> Block {
    Block(html! { pre { (text) } })
}

/// Names and their values, such as a machine's or a run's settings.
pub fn key_values<K: AsRef<str>, V: AsRef<str>>(pairs: &[(K, V)]) -> Block {
    Block(html! {
        dl {
            @for (key, value) in pairs {
                div { dt { (key.as_ref()) } dd { (value.as_ref()) } }
            }
        }
    })
}

/// Section that is collapsed until the reader opens it.
pub fn folded(summary: &str, blocks: impl IntoIterator<Item = Block>) -> Block {
    Block(html! {
        details {
            summary { (summary) }
            @for block in blocks { (block.0) }
        }
    })
}

/// A table whose first column names the row and whose other columns are figures.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<(bool, Vec<String>)>,
    caption: Option<String>,
    is_prose: bool,
}

impl Table {
    /// A table with these column headings.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Table {
        Table {
            header: header.into_iter().map(Into::into).collect(),
            ..Table::default()
        }
    }

    /// A table of cells, each column of times in one unit, which its heading names. Rows that stand out come with
    /// `true`.
    pub fn in_one_unit(
        header: &[&str],
        rows: impl IntoIterator<Item = (bool, Vec<Cell>)>,
    ) -> Table {
        let (strong, cells): (Vec<bool>, Vec<Vec<Cell>>) = rows.into_iter().unzip();
        let (header, rows) = in_one_unit(header, &cells);
        Table {
            header,
            rows: strong.into_iter().zip(rows).collect(),
            ..Table::default()
        }
    }

    /// A line of small print above the table.
    pub fn caption(&mut self, text: impl Into<String>) -> &mut Table {
        self.caption = Some(text.into());
        self
    }

    /// Says that the cells are words rather than figures: they stand to the left, and long ones are broken.
    pub fn prose(&mut self) -> &mut Table {
        self.is_prose = true;
        self
    }

    /// Adds a row. Missing cells stay empty, cells beyond the heading are shown all the same.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Table {
        self.rows
            .push((false, cells.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a row that stands out.
    pub fn strong_row<S: Into<String>>(
        &mut self,
        cells: impl IntoIterator<Item = S>,
    ) -> &mut Table {
        self.rows
            .push((true, cells.into_iter().map(Into::into).collect()));
        self
    }

    /// The table as part of a page. Where the screen is too narrow for its columns, each row is a list of headings and
    /// cells, so that none is out of sight.
    pub fn html(&self) -> Block {
        Block(html! {
            // Outside the part that scrolls, where a long one would be cut at the edge.
            @if let Some(caption) = &self.caption { p.caption { (caption) } }
            div.scroll tabindex="0" {
                table.prose[self.is_prose]
                    .several[self.header.len() >= SEVERAL_COLUMNS]
                    .many[self.header.len() >= MANY_COLUMNS] {
                    thead { tr { @for cell in &self.header { th scope="col" { (cell) } } } }
                    tbody {
                        @for (strong, cells) in &self.rows {
                            tr.strong[*strong] {
                                @for (index, cell) in cells.iter().enumerate() {
                                    @if index == 0 { th scope="row" { (cell) } } @else {
                                        td data-label=(self.header.get(index).map_or("", String::as_str)) { (cell) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        })
    }
}

/// Columns from which on a table needs more than the width of a phone, and of a tablet. Lower: rows become lists where
/// there is room for columns. Higher: columns are out of sight.
const SEVERAL_COLUMNS: usize = 5;
const MANY_COLUMNS: usize = 10;

/// Colours of series are those of Okabe and Ito, which readers with any of the common colour
/// deficiencies tell apart, darkened or lightened to stand on the background; series differ by dash as well.
pub(crate) const COLOURS: &str = "\
:root{--bg:#fff;--ink:#1b1f24;--soft:#59636e;--line:#d5dae0;--panel:#f5f7f9;\
--good:#0a6b4d;--good-bg:#e4f5ee;--limited:#8a5200;--limited-bg:#fff3dc;--bad:#a8320a;--bad-bg:#fdeae2;--note:#0b5a8f;--note-bg:#e6f1fa;\
--s0:#0072b2;--s1:#d55e00;--s2:#00855f;--s3:#b4518a;--s4:#4d4d4d;--s5:#b97a00;--s6:#2b8fc9;--s7:#7a5195}\
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e6e9ed;--soft:#a2abb5;--line:#353c45;--panel:#1d2228;\
--good:#5ed3a8;--good-bg:#12332a;--limited:#f2bd5c;--limited-bg:#3a2c10;--bad:#ff9a73;--bad-bg:#43200f;--note:#7cc0f0;--note-bg:#11304a;\
--s0:#4aa8e0;--s1:#ff8a3d;--s2:#2fc79a;--s3:#e39bc6;--s4:#c4c9cf;--s5:#f0b429;--s6:#9ad4f5;--s7:#bb9bd8}}\
";

/// Contents of a drawing, on a page or in a file of its own.
pub(crate) const DRAWING: &str = "\
.grid{stroke:var(--line);stroke-width:1}.minor{stroke:var(--line);stroke-width:.5;opacity:.6}\
.axis{stroke:var(--soft);stroke-width:1}\
.plot text{fill:var(--soft);font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
.plot text.cell{font-size:10px;fill:var(--ink)}.plot text.cell.on{fill:var(--bg)}\
.line{fill:none;stroke-width:2;stroke-linejoin:round}\
.area{stroke:none;opacity:.1}\
.mark{stroke:none;opacity:.8}\
.span{fill:var(--limited)}.event{fill:var(--note)}.bad-span{fill:var(--bad)}.miss{stroke:var(--bad);stroke-width:1.2}\
.place{fill:var(--bg);stroke:var(--soft);stroke-width:2}.missed{fill:none;stroke:var(--bad);stroke-width:1.2}\
.cross{stroke:var(--bad);stroke-width:3}\
.reference{stroke-width:2}.deadline{stroke:var(--bad)}.paper{stroke:var(--note);stroke-dasharray:2 3}\
.due{fill:none;stroke:var(--bad);stroke-width:1.2}\
.percentile line{stroke:var(--own);stroke-width:1;stroke-dasharray:3 3}.percentile circle{fill:var(--own)}\
.plot .percentile text{font-size:10px}\
.off,.out{display:none}\
.surface{fill:var(--s0)}.hole{fill:none;stroke:var(--line)}\
";

const STYLE: &str = "\
*{box-sizing:border-box}\
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}\
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;overflow-wrap:anywhere}\
main{max-width:68rem;margin:0 auto;padding:1.25rem 1rem 3rem}\
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .25rem}\
h2{font-size:1.15rem;margin:2rem 0 .6rem}\
.subtitle{color:var(--soft);margin:0 0 1.25rem}\
.verdict{border-left:.35rem solid;border-radius:.35rem;padding:.8rem 1rem;margin:1rem 0}\
.verdict .answer{font-size:1.15rem;font-weight:650;margin:0}\
.verdict ul{margin:.4rem 0 0;padding-left:1.2rem;color:var(--ink)}\
.good{color:var(--good);background:var(--good-bg)}.limited{color:var(--limited);background:var(--limited-bg)}\
.bad{color:var(--bad);background:var(--bad-bg)}.note{color:var(--note);background:var(--note-bg)}\
.scroll{overflow-x:auto;margin-bottom:1.25rem;border:1px solid var(--line);border-radius:.35rem}\
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}\
.caption{color:var(--soft);font-size:.92rem;margin:0 0 .4rem}\
th,td{padding:.4rem .7rem;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}\
thead th{border-top:0;color:var(--soft);font-weight:600;background:var(--panel);overflow-wrap:normal}\
th:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}\
thead th:first-child{background:var(--panel)}\
tbody th{font-weight:500}\
.several thead th,.several th[scope=row]{white-space:normal;overflow-wrap:break-word;vertical-align:bottom}\
.many th,.many td{padding:.4rem .5rem}\
.prose th,.prose td{text-align:left;white-space:normal;min-width:6rem;overflow-wrap:break-word;vertical-align:top}\
tr.strong th,tr.strong td{font-weight:700}\
dl{margin:0 0 1.25rem;border:1px solid var(--line);border-radius:.35rem;font-size:.92rem}\
dl div{display:grid;grid-template-columns:minmax(8rem,14rem) 1fr;gap:0 1rem;padding:.4rem .7rem}\
dl div+div{border-top:1px solid var(--line)}\
dt{color:var(--soft)}dd{margin:0}\
pre{background:var(--panel);padding:.7rem;border-radius:.35rem;overflow-x:auto;font-size:.85rem}\
details{margin-top:1rem}summary{cursor:pointer;color:var(--soft);margin-bottom:.5rem}\
figure{margin:0 0 1.25rem;position:relative}\
svg[tabindex]:focus-visible{outline:2px solid var(--note);outline-offset:2px}\
.cursor{stroke:var(--ink);stroke-width:1;pointer-events:none}\
.tip{position:absolute;z-index:2;max-width:min(22rem,100%);padding:.4rem .6rem;border:1px solid var(--line);border-radius:.35rem;\
background:var(--bg);box-shadow:0 2px 8px rgba(0,0,0,.25);font-size:.85rem;line-height:1.35;pointer-events:none;font-variant-numeric:tabular-nums}\
.tip[hidden]{display:none}.tip p{margin:0 0 .2rem;font-weight:650}\
.tip div{display:flex;gap:.5rem;align-items:baseline}.tip b{margin-left:auto;font-weight:600;text-align:right}\
.tip i{flex:none;width:.6rem;height:.6rem;border-radius:50%}\
.switches{display:flex;flex-wrap:wrap;gap:.4rem;align-items:center;margin:.5rem 0 0;font-size:.9rem}\
button{font:inherit;color:inherit;background:none;border:1px solid var(--line);border-radius:.35rem;padding:.1rem .55rem;cursor:pointer}\
button[aria-pressed=true]{background:var(--panel);border-color:var(--soft)}button[aria-pressed=false]{color:var(--soft);text-decoration:line-through}\
.legend button{display:flex;align-items:center;gap:.45rem;border-color:transparent;padding:0 .2rem;background:none;text-align:left}\
.data{margin-left:auto}.data a,a{color:var(--note)}\
figcaption{color:var(--soft);font-size:.92rem;margin-bottom:.4rem}\
svg.plot{display:block;width:100%;height:auto}\
svg.wide{display:none}\
@media(min-width:700px){svg.wide{display:block}svg.narrow{display:none}}\
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15rem),1fr));gap:.5rem 1rem}\
.pictures figure{margin:0}.pictures img{display:block;width:100%;height:auto;margin-bottom:.3rem}\
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;list-style:none;margin:.4rem 0 0;padding:0;font-size:.9rem}\
.legend li{display:flex;align-items:center;gap:.45rem}\
.legend svg{flex:none}\
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));gap:.5rem 1rem}\
.multiples h3{font-size:.95rem;font-weight:600;margin:.3rem 0 .1rem}\
@media(max-width:480px){dl div{grid-template-columns:1fr}th:first-child{white-space:normal;overflow-wrap:break-word;min-width:8.5rem}}\
@media(max-width:520px){table thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}table tbody,table tr,table th[scope=row],table td{display:block;position:static;min-width:0;white-space:normal}table tr{border-top:1px solid var(--line);padding:.35rem 0}table tr>*{border:0;padding:.1rem .7rem}table td{display:flex;justify-content:space-between;gap:1rem}table td::before{content:attr(data-label);color:var(--soft);font-weight:400;text-align:left}}\
@media(max-width:760px){.several thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}.several tbody,.several tr,.several th[scope=row],.several td{display:block;position:static;min-width:0;white-space:normal}.several tr{border-top:1px solid var(--line);padding:.35rem 0}.several tr>*{border:0;padding:.1rem .7rem}.several td{display:flex;justify-content:space-between;gap:1rem}.several td::before{content:attr(data-label);color:var(--soft);font-weight:400;text-align:left}}\
@media(max-width:1000px){.many thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}.many tbody,.many tr,.many th[scope=row],.many td{display:block;position:static;min-width:0;white-space:normal}.many tr{border-top:1px solid var(--line);padding:.35rem 0}.many tr>*{border:0;padding:.1rem .7rem}.many td{display:flex;justify-content:space-between;gap:1rem}.many td::before{content:attr(data-label);color:var(--soft);font-weight:400;text-align:left}}\
footer{color:var(--soft);font-size:.85rem;margin-top:2.5rem;border-top:1px solid var(--line);padding-top:.6rem}\
@media print{svg.wide{display:block}svg.narrow{display:none}.scroll{overflow:visible}}\
";

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<script>alert('1')</script>\"&";

    #[test]
    fn nothing_becomes_markup() {
        let mut table = Table::new([HOSTILE]);
        table
            .caption(HOSTILE)
            .row([HOSTILE, HOSTILE])
            .strong_row([HOSTILE]);
        let mut page = Page::new(HOSTILE, HOSTILE);
        page.verdict(Level::Bad, HOSTILE, &[HOSTILE]);
        page.section(
            HOSTILE,
            [
                table.html(),
                paragraph(HOSTILE),
                verbatim(HOSTILE),
                key_values(&[(HOSTILE, HOSTILE)]),
                folded(HOSTILE, [paragraph(HOSTILE)]),
            ],
        );
        let html = page.html();
        assert!(
            !html.contains("<script"),
            "nor has it a script without plots"
        );
        assert_eq!(html.matches("&lt;script&gt;").count(), 17);
    }

    #[test]
    fn the_only_script_is_known_by_its_hash() {
        let mut page = Page::new("a", "b");
        let lines = [crate::chart::Line::new(
            HOSTILE,
            crate::chart::Mark::Line,
            vec![(1.0, 2.0)],
        )];
        let axis = crate::chart::Axis::linear("x", crate::chart::Unit::Number);
        let chart = crate::chart::Chart {
            caption: HOSTILE.to_owned(),
            across: axis.clone(),
            up: axis,
            lines: lines.into(),
            references: vec![crate::reference::Reference::paper(HOSTILE, 2.0)],
        };
        page.section("plot", [chart.html()]);
        let html = page.html();
        assert_eq!(html.matches("<script").count(), 1);
        assert!(!live::SCRIPT.contains("</"), "it would end the element");
        let (_, policy) = html.split_once("script-src 'sha256-").unwrap();
        let (hash, _) = policy.split_once('\'').unwrap();
        assert_eq!(BASE64.decode(hash).unwrap().len(), 32);
        assert!(!html.contains("unsafe-eval") && !html.contains("http:"));
    }

    #[test]
    fn the_page_loads_nothing() {
        let html = Page::new("a", "b").html();
        assert!(html.starts_with("<!DOCTYPE html>"));
        for word in ["src=", "href=", "url(", "@import", "http://", "https://"] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.contains("default-src 'none'"));
    }

    #[test]
    fn verdicts_say_their_level_in_words_and_signs() {
        for (level, class, sign) in [
            (Level::Good, "verdict good", "✓"),
            (Level::Limited, "verdict limited", "!"),
            (Level::Bad, "verdict bad", "✗"),
            (Level::Note, "verdict note", "i"),
        ] {
            let mut page = Page::new("t", "s");
            page.verdict::<&str>(level, "the answer", &[]);
            let html = page.html();
            assert!(html.contains(class) && html.contains(sign) && html.contains("the answer"));
        }
    }
}
