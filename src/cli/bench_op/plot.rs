//! Curves as an SVG file: a panel for each quantity, a line for each method.

use std::fmt::Write;

/// A line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Curve {
    pub(super) name: String,
    /// `(x, y)`, by x.
    pub(super) points: Vec<(f64, f64)>,
}

/// Some curves over one quantity, with the level that they are compared with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) curves: Vec<Curve>,
    pub(super) level: f64,
}

const SIZE: (f64, f64) = (460.0, 360.0);
const MARGIN: (f64, f64) = (56.0, 48.0);
const COLOURS: [&str; 6] = ["#777777", "#d9822b", "#2b6cb0", "#2f855a", "#805ad5", "#c53030"];

/// The panels beside each other; `x` is what the abscissa says, which is logarithmic.
pub(super) fn svg(x: &str, panels: &[Panel]) -> String {
    let (width, height) = (SIZE.0 * panels.len() as f64, SIZE.1);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, panel) in panels.iter().enumerate() {
        draw(&mut out, number as f64 * SIZE.0, x, panel).expect("writing to a string");
    }
    out + "</svg>\n"
}

fn draw(out: &mut String, left: f64, x: &str, panel: &Panel) -> std::fmt::Result {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (first, last) = bounds(&mut points().map(|(x, _)| x.ln()));
    let (low, high) = bounds(&mut points().map(|(_, y)| *y).chain([panel.level]));
    let (low, high) = (low - 0.05 * (high - low), high + 0.05 * (high - low).max(1e-9));
    let (right, bottom) = (left + SIZE.0 - 16.0, SIZE.1 - MARGIN.1);
    let to_x = |x: f64| left + MARGIN.0 + (x.ln() - first) / (last - first).max(1e-9) * (right - left - MARGIN.0);
    let to_y = |y: f64| bottom - (y - low) / (high - low) * (bottom - 32.0);
    writeln!(out, "<text x=\"{}\" y=\"18\" font-size=\"13\">{}</text>", left + MARGIN.0, panel.title)?;
    writeln!(out, "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{x}</text>", SIZE.1 - 10.0)?;
    for step in 0..=4 {
        let y = low + (high - low) * f64::from(step) / 4.0;
        let (at, from) = (to_y(y), left + MARGIN.0);
        writeln!(out, "<path d=\"M{from:.1} {at:.1}H{right:.1}\" stroke=\"#dddddd\"/>")?;
        writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{y:.2}</text>", from - 6.0, at + 4.0)?;
    }
    let mut ticks: Vec<f64> = points().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for x in ticks {
        writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>", to_x(x), bottom + 16.0)?;
    }
    let level = to_y(panel.level);
    writeln!(
        out,
        "<path d=\"M{:.1} {level:.1}H{right:.1}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>",
        left + MARGIN.0
    )?;
    for ((number, curve), colour) in panel.curves.iter().enumerate().zip(COLOURS.iter().cycle()) {
        let line: Vec<String> = curve.points.iter().map(|(x, y)| format!("{:.1},{:.1}", to_x(*x), to_y(*y))).collect();
        writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
            line.join(" ")
        )?;
        let (at, y) = (right - 130.0, 40.0 + 14.0 * number as f64);
        writeln!(out, "<text x=\"{at:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", curve.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_and_every_point_is_drawn() {
        let curve = |name: &str, y: f64| Curve { name: name.into(), points: vec![(128.0, y), (256.0, 2.0 * y)] };
        let panel = Panel { title: "t".into(), curves: vec![curve("a", 1.0), curve("b", 3.0)], level: 2.0 };
        let text = svg("tokens", &[panel.clone(), panel]);
        assert_eq!(text.matches("<polyline").count(), 4);
        assert_eq!(text.matches(">256<").count(), 2);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
