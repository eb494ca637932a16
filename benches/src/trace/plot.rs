//! Draws the plot of pinned CPUs over the days, with a line for each policy. The plot is readable on a light and on
//! a dark background.

use std::fmt::Write as _;

use super::LoadRun;
use super::policy::POLICY_NAMES;
use super::result::SOURCE;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 470.0;
/// Edges of the area in which lines are drawn, in pixels: left, right, top, bottom.
const PLOT_AREA: [f64; 4] = [64.0, 600.0, 52.0, 392.0];
/// Colour and dash pattern of the line of each policy in [`POLICY_NAMES`]. The lines are distinguishable on any
/// background, and also without colours.
const STYLES: [(&str, &str); POLICY_NAMES.len()] = [
    ("#a0761a", "2 3"),
    ("#d1453b", "7 3"),
    ("#8b6fd1", "7 3 2 3"),
    ("#2f9e8f", "3 2"),
    ("#2b7fd9", ""),
];

/// Returns the plot as an SVG file.
pub(super) fn draw(trace: &str, run: &LoadRun, days: f64) -> String {
    let [left, right, top, bottom] = PLOT_AREA;
    let x = |day: f64| left + (right - left) * day / days.max(1.0);
    let y = |part: f64| bottom - (bottom - top) * part.clamp(0.0, 1.1) / 1.1;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Pinned CPUs over time by policy">
<style>
text {{ font: 13px system-ui, sans-serif; fill: #24292f }}
.grid {{ stroke: #8c959f; stroke-opacity: .35; fill: none }}
.wanted {{ stroke: #6e7781; fill: none; stroke-width: 1.2 }}
.line {{ fill: none; stroke-width: 2 }}
.small {{ font-size: 11px }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #d0d7de }} .wanted {{ stroke: #9ea7b3 }} }}
</style>
<text x="{left}" y="24">Pinned CPUs in percent of all pinnable CPUs: {trace}, nominal load {:.2}</text>
"##,
        run.load
    );
    let mut add = |line: std::fmt::Arguments<'_>| writeln!(svg, "{line}").unwrap_or(());
    for tenth in [0, 2, 4, 6, 8, 10] {
        let at = y(f64::from(tenth) / 10.0);
        add(format_args!(r#"<path class="grid" d="M{left} {at:.1}H{right}"/>"#));
        let text = at + 4.0;
        add(format_args!(
            r#"<text x="{}" y="{text:.1}" text-anchor="end">{} %</text>"#,
            left - 8.0,
            tenth * 10
        ));
    }
    let mut day = 0.0;
    while day <= days {
        add(format_args!(r#"<path class="grid" d="M{:.1} {top}V{bottom}"/>"#, x(day)));
        add(format_args!(
            r#"<text x="{:.1}" y="{}" text-anchor="middle">{day}</text>"#,
            x(day),
            bottom + 18.0
        ));
        day += (days / 7.0).ceil().max(1.0);
    }
    add(format_args!(
        r#"<text x="{}" y="{}" text-anchor="middle">day of the trace</text>"#,
        f64::midpoint(left, right),
        bottom + 38.0
    ));
    add(format_args!(
        r#"<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">pinned CPUs</text>"#,
        f64::midpoint(top, bottom)
    ));
    let path = |values: &[f64]| {
        let step = days / values.len().max(1) as f64;
        let points = values.iter().enumerate();
        let points =
            points.map(|(at, value)| format!("{:.1} {:.1}", x(at as f64 * step), y(*value)));
        format!("M{}", points.collect::<Vec<_>>().join("L"))
    };
    if let Some(outcome) = run.outcomes.first() {
        add(format_args!(r#"<path class="wanted" d="{}"/>"#, path(&outcome.requested_curve)));
    }
    let lines = POLICY_NAMES.iter().zip(STYLES).zip(&run.outcomes);
    for ((_, (colour, dashes)), outcome) in lines.clone() {
        add(format_args!(
            r#"<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="{}"/>"#,
            path(&outcome.pinned_curve)
        ));
    }
    let mut at = top + 10.0;
    let [key, end, text] = [right + 12.0, right + 38.0, right + 44.0];
    add(format_args!(r#"<path class="wanted" d="M{key} {}H{end}"/>"#, at - 4.0));
    add(format_args!(r#"<text class="small" x="{text}" y="{at}">requested</text>"#));
    let mut by_packed: Vec<_> = lines.collect();
    by_packed.sort_by(|a, b| b.1.mean_pinned.total_cmp(&a.1.mean_pinned));
    for ((name, (colour, dashes)), outcome) in by_packed {
        at += 36.0;
        add(format_args!(
            r#"<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{key} {}H{end}"/>"#,
            at - 4.0
        ));
        add(format_args!(r#"<text class="small" x="{text}" y="{at}">{name}</text>"#));
        add(format_args!(
            r#"<text class="small" x="{text}" y="{}">{:.1} % on average</text>"#,
            at + 15.0,
            100.0 * outcome.mean_pinned
        ));
    }
    for (line, source) in SOURCE.split("; ").enumerate() {
        let at = HEIGHT - 22.0 + 14.0 * line as f64;
        let before = if line == 0 { "VMs: " } else { "" };
        add(format_args!(r#"<text class="small" x="{left}" y="{at}">{before}{source}</text>"#));
    }
    svg += "</svg>\n";
    svg
}
