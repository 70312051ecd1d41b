//! `/memory`: pages, the replay ring and snapshots, drawn as text.

use super::{Colour, Sizes, mebibytes};
use crate::{
    engine::{ConversationId, MemoryReport, SequenceReport},
    memory::{PageOwner, PoolUsage},
};

/// Where it is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Canvas {
    /// Columns; none if it is no terminal.
    pub(super) width: Option<usize>,
    /// Whether to use colour.
    pub(super) colour: Colour,
}

/// Whose a page is, as it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    Kept,
    Several,
    Free,
}

/// Columns of what is no terminal, and those that are needed at least.
const USUAL_WIDTH: usize = 80;
const LEAST_WIDTH: usize = 24;
/// Columns that the parts of a legend take, one beside the other.
const LEGEND_WIDTH: usize = 39;
/// Columns that names take.
const INDENT: usize = 11;
/// Lines that pages take at most.
const ROWS: usize = 4;
/// Signs of a bar.
const BAR: usize = 24;

impl Kind {
    const ALL: [Kind; 4] = [Kind::Own, Kind::Kept, Kind::Several, Kind::Free];

    const fn of(owner: PageOwner) -> Self {
        match owner {
            PageOwner::Free => Kind::Free,
            PageOwner::Kept => Kind::Kept,
            PageOwner::Sequence(_) => Kind::Own,
            PageOwner::Several => Kind::Several,
        }
    }

    /// Its sign in a terminal and elsewhere, and what it means.
    const fn sign(self) -> (char, char, &'static str) {
        match self {
            Kind::Own => ('█', '#', "of this conversation"),
            Kind::Kept => ('▓', '+', "kept to go back to"),
            Kind::Several => ('▒', '=', "shared"),
            Kind::Free => ('·', '.', "free"),
        }
    }

    const fn ansi(self) -> &'static str {
        match self {
            Kind::Own => "\x1b[36m",
            Kind::Kept => "\x1b[33m",
            Kind::Several => "\x1b[35m",
            Kind::Free => "\x1b[2m",
        }
    }
}

/// How memory looks for a conversation. No line is longer than the terminal is wide, if that is at least [`LEAST_WIDTH`].
pub(super) fn memory(report: &MemoryReport, own: ConversationId, sizes: Sizes, canvas: Canvas) -> String {
    let width = canvas.width.unwrap_or(USUAL_WIDTH).max(LEAST_WIDTH) - 1;
    let mut drawing = Drawing { canvas, width, lines: Vec::new() };
    drawing.pages(report, sizes);
    if let Some(sequence) = report.sequences.iter().find(|sequence| sequence.conversation == Some(own)) {
        drawing.sequence(sequence, sizes);
    }
    drawing.snapshots(report, sizes);
    drawing.bytes(report, sizes);
    drawing.lines.iter().map(|line| drawing.painted(line)).collect::<Vec<_>>().join("\n")
}

struct Drawing {
    canvas: Canvas,
    width: usize,
    lines: Vec<String>,
}

impl Drawing {
    fn sign(&self, kind: Kind) -> char {
        let (drawn, plain, _) = kind.sign();
        if self.canvas.width.is_some() { drawn } else { plain }
    }

    /// A text behind a name, on as many lines as it takes.
    fn say(&mut self, name: &str, text: &str) {
        let mut line = format!("{name:INDENT$}");
        let mut is_empty = true;
        for word in text.split(' ') {
            if is_empty && word.is_empty() {
                continue;
            }
            let more = word.chars().count() + usize::from(!is_empty);
            if !is_empty && line.chars().count() + more > self.width {
                self.lines.push(std::mem::replace(&mut line, " ".repeat(INDENT)));
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.lines.push(line);
    }

    fn pages(&mut self, report: &MemoryReport, sizes: Sizes) {
        let PoolUsage { held, total } = report.stats.usage.pages;
        if total == 0 {
            return;
        }
        let columns = self.width - INDENT;
        let each = total.div_ceil(columns * ROWS);
        let [own, kept, several, free] = Kind::ALL.map(|kind| {
            let of_kind = |(owner, count): &(PageOwner, usize)| if Kind::of(*owner) == kind { *count } else { 0 };
            report.pages.iter().map(of_kind).sum::<usize>()
        });
        let sign = if each == 1 { "a page".into() } else { format!("{each} pages") };
        let bytes = mebibytes(held as u64 * sizes.page_bytes);
        self.say("pages", &format!("{held} of {total} in use, {bytes}; a sign is {sign}"));
        for row in cells(&report.pages, each).chunks(columns) {
            let row: String = row.iter().map(|kind| self.sign(*kind)).collect();
            self.lines.push(format!("{:INDENT$}{row}", ""));
        }
        let counts = Kind::ALL.into_iter().zip([own, kept, several, free]);
        let part = |(kind, count): (Kind, usize)| format!("{} {count} {}", self.sign(kind), kind.sign().2);
        let legend: Vec<String> = counts.map(part).collect();
        if self.width < LEGEND_WIDTH {
            legend.iter().for_each(|part| self.say("", part));
        } else {
            // What belongs together stays on one line.
            self.say("", &legend.iter().map(|part| part.replace(' ', "\u{a0}")).collect::<Vec<_>>().join("  "));
        }
    }

    fn sequence(&mut self, sequence: &SequenceReport, sizes: Sizes) {
        let (tokens, context) = (sequence.tokens, sizes.context);
        self.say("tokens", &format!("{} {tokens} of {context}", self.bar(tokens as usize, context)));
        let (least, most) = (sequence.held.iter().min(), sequence.held.iter().max());
        if let (Some(least), Some(most)) = (least, most)
            && *least < tokens
        {
            let mean = sequence.held.iter().map(|held| f64::from(*held)).sum::<f64>() / sequence.held.len() as f64;
            let range = if least == most { format!("{least}") } else { format!("{least} to {most}") };
            let share = 100.0 * mean / f64::from(tokens);
            self.say(
                "held",
                &format!("{} {range} of them by a layer, {share:.0} %", self.bar(mean as usize, tokens as usize)),
            );
        }
        if sizes.ring > 0 {
            let ring = sequence.ring as usize;
            self.say("ring", &format!("{} {ring} of {} tokens to take back", self.bar(ring, sizes.ring), sizes.ring));
        }
    }

    fn snapshots(&mut self, report: &MemoryReport, sizes: Sizes) {
        let PoolUsage { held, total } = report.stats.usage.snapshots;
        let bytes = mebibytes(held as u64 * sizes.snapshot_bytes);
        self.say("snapshots", &format!("{} {held} of {total} in memory, {bytes}", self.bar(held, total)));
        if let Some(offload_cache) = &report.stats.offload_cache {
            let host = Some(offload_cache.host).filter(|host| host.count > 0);
            for (place, tier) in [("on the host", host), ("on disk", offload_cache.disk)] {
                let Some(tier) = tier else { continue };
                self.say("", &format!("{} {place}, {}", tier.count, mebibytes(tier.bytes)));
            }
        }
    }

    fn bytes(&mut self, report: &MemoryReport, sizes: Sizes) {
        let [pages, sequences, snapshots] = sizes.of(report.stats.usage);
        let all = mebibytes(pages + sequences + snapshots);
        let parts = [("pages", pages), ("states", sequences), ("snapshots", snapshots)];
        let parts = parts.map(|(name, bytes)| format!("{name} {}", mebibytes(bytes))).join(", ");
        self.say("bytes", &format!("{all} in use: {parts}"));
    }

    fn bar(&self, held: usize, total: usize) -> String {
        let length = BAR.min(total).min((self.width - INDENT) / 2);
        // Something is never drawn as nothing.
        let filled = (held * length).div_ceil(total.max(1)).min(length);
        let signs = |kind, count| std::iter::repeat_n(self.sign(kind), count);
        signs(Kind::Own, filled).chain(signs(Kind::Free, length - filled)).collect()
    }

    /// Signs in their colours.
    fn painted(&self, line: &str) -> String {
        if self.canvas.colour == Colour::Off {
            return line.replace('\u{a0}', " ");
        }
        let (mut out, mut last) = (String::new(), None);
        for c in line.chars() {
            let kind = Kind::ALL.into_iter().find(|kind| self.sign(*kind) == c);
            if kind != last {
                out.push_str(if last.is_some() { "\x1b[0m" } else { "" });
                out.push_str(kind.map_or("", Kind::ansi));
                last = kind;
            }
            out.push(if c == '\u{a0}' { ' ' } else { c });
        }
        out + if last.is_some() { "\x1b[0m" } else { "" }
    }
}

/// A kind for every `each` pages: that of most of them, but for free ones if there are others.
fn cells(runs: &[(PageOwner, usize)], each: usize) -> Vec<Kind> {
    let (mut all, mut counts, mut filled) = (Vec::new(), [0; 4], 0);
    let close = |counts: &mut [usize; 4], all: &mut Vec<Kind>| {
        let used = (0..3).max_by_key(|kind| counts[*kind]).filter(|kind| counts[*kind] > 0);
        all.push(used.map_or(Kind::Free, |kind| Kind::ALL[kind]));
        *counts = [0; 4];
    };
    for (owner, count) in runs {
        let mut left = *count;
        while left > 0 {
            let taken = left.min(each - filled);
            counts[Kind::of(*owner) as usize] += taken;
            filled += taken;
            left -= taken;
            if filled == each {
                close(&mut counts, &mut all);
                filled = 0;
            }
        }
    }
    if filled > 0 {
        close(&mut counts, &mut all);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{OffloadStats, Stats, Steps},
        memory::{SequenceId, Usage},
        session::OffloadUsage,
    };

    const SIZES: Sizes =
        Sizes { page_bytes: 1 << 14, slot_bytes: 1 << 20, snapshot_bytes: 1 << 19, context: 4096, ring: 8 };

    fn report(pages: &[(PageOwner, usize)], held: Vec<u32>) -> (MemoryReport, ConversationId) {
        let id = ConversationId::for_tests(3);
        let total = pages.iter().map(|(_, count)| count).sum();
        let free: usize = pages.iter().filter(|(owner, _)| *owner == PageOwner::Free).map(|(_, count)| count).sum();
        let usage = Usage {
            pages: PoolUsage { held: total - free, total },
            sequences: PoolUsage { held: 1, total: 1 },
            snapshots: PoolUsage { held: 5, total: 50 },
        };
        let disk = Some(OffloadUsage { count: 2, bytes: 3 << 20 });
        let offload_cache = Some(OffloadStats { host: OffloadUsage::default(), disk, failure: None });
        let stats = Stats { usage, tokens_read: 1000, steps: Steps::default(), offload_cache };
        let sequence = SequenceReport { id: 0, conversation: Some(id), tokens: 1000, held, ring: 5, paused: false };
        (MemoryReport { stats, pages: pages.to_vec(), sequences: vec![sequence] }, id)
    }

    fn some() -> (MemoryReport, ConversationId) {
        let own = PageOwner::Sequence(SequenceId(0));
        report(&[(own, 600), (PageOwner::Kept, 300), (PageOwner::Several, 100), (PageOwner::Free, 23_000)], vec![1000])
    }

    #[test]
    fn every_page_is_drawn_and_no_line_is_too_long() {
        let (report, id) = some();
        for width in [24, 30, 39, 40, 61, 80, 200] {
            let text = memory(&report, id, SIZES, Canvas { width: Some(width), colour: Colour::Off });
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines.iter().all(|line| line.chars().count() < width), "{width}: {text}");
            let drawn: String = lines.iter().filter(|line| line.starts_with(&" ".repeat(INDENT))).copied().collect();
            let each = 24_000usize.div_ceil((width - 1 - INDENT) * ROWS);
            let count = |sign: char| drawn.matches(sign).count() - 1;
            assert_eq!("█▓▒·".chars().map(count).sum::<usize>(), 24_000usize.div_ceil(each), "{text}");
            assert!(count('█') >= 600 / each && count('▓') >= (300 / each).saturating_sub(1), "{width}: {text}");
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in
                ["600 of this", "300 kept", "100 shared", "23000 free", "5 of 50 in memory", "2 on disk, 3.0 MiB"]
            {
                assert!(flat.contains(part), "{width}: no {part} in {text}");
            }
        }
    }

    #[test]
    fn what_is_held_is_drawn_where_something_was_given_up() {
        let free = [(PageOwner::Free, 10)];
        let text = |held| {
            let (report, id) = report(&free, held);
            memory(&report, id, SIZES, Canvas { width: None, colour: Colour::Off })
        };
        assert!(!text(vec![1000, 1000]).contains("held"));
        let said = text(vec![128, 384]);
        assert!(said.contains("held       #######................. 128 to 384 of them by a layer, 26 %"), "{said}");
        assert!(said.contains("ring       #####... 5 of 8 tokens"), "{said}");
        assert!(said.is_ascii(), "plain where it is no terminal: {said}");
        assert!(said.contains("bytes      3.5 MiB in use: pages 0.0 MiB, states 1.0 MiB, snapshots 2.5 MiB"), "{said}");
    }

    #[test]
    fn colours_are_around_signs_only() {
        let (report, id) = some();
        let canvas = |colour| Canvas { width: Some(80), colour };
        let plain = memory(&report, id, SIZES, canvas(Colour::Off));
        let painted = memory(&report, id, SIZES, canvas(Colour::On));
        assert!(painted.contains("\x1b[36m█") && painted.matches("\x1b[0m").count() > 8, "{painted:?}");
        let stripped =
            Kind::ALL.iter().fold(painted.replace("\x1b[0m", ""), |text, kind| text.replace(kind.ansi(), ""));
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_sign_of_several_pages_is_what_most_of_them_are() {
        let own = PageOwner::Sequence(SequenceId(0));
        let runs = [(own, 1), (PageOwner::Kept, 2), (PageOwner::Free, 4), (own, 1), (PageOwner::Free, 9)];
        assert_eq!(cells(&runs, 4), [Kind::Kept, Kind::Own, Kind::Free, Kind::Free, Kind::Free]);
        assert_eq!(cells(&runs, 17), [Kind::Kept]);
    }
}
