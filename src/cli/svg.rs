//! A few shapes of SVG, enough for the pictures of this command.

use std::fmt::Write;

/// A picture under way.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Colours that stay apart also for people who see few of them (Okabe and Ito).
pub(super) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#444444"];

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Svg {
        Svg { body: String::new(), width, height }
    }

    /// A box with rounded corners and a name in its middle; a second line under it if there is one.
    pub(super) fn node(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str, lines: &[String]) {
        let (left, top) = (x - width / 2.0, y - height / 2.0);
        let _ = writeln!(
            self.body,
            r##"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" rx="6" fill="{fill}" stroke="#333"/>"##
        );
        for (i, line) in lines.iter().enumerate() {
            let offset = (i as f64 - (lines.len() as f64 - 1.0) / 2.0) * 15.0 + 4.5;
            let (size, weight) = if i == 0 { (13, "bold") } else { (11, "normal") };
            self.text(x, y + offset, size, weight, "#111", line);
        }
    }

    /// A line along `points`, which an SVG path describes.
    pub(super) fn path(&mut self, points: &str, colour: &str, width: f64, arrow: bool) {
        let end = if arrow { format!(r#" marker-end="url(#{})""#, marker(colour)) } else { String::new() };
        let _ = writeln!(
            self.body,
            r#"<path d="{points}" fill="none" stroke="{colour}" stroke-width="{width:.1}"{end}/>"#
        );
    }

    /// Text centred at `x`.
    pub(super) fn text(&mut self, x: f64, y: f64, size: u32, weight: &str, colour: &str, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="middle">{}</text>"#,
            escape(text)
        );
    }

    /// Text that begins at `x`.
    pub(super) fn text_from(&mut self, x: f64, y: f64, size: u32, weight: &str, colour: &str, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="{weight}" fill="{colour}">{}</text>"#,
            escape(text)
        );
    }

    /// Text on a white ground, for lines that it lies on.
    pub(super) fn label(&mut self, x: f64, y: f64, colour: &str, text: &str) {
        let width = text.chars().count() as f64 * 6.2 + 6.0;
        let _ = writeln!(
            self.body,
            r##"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="14" rx="3" fill="#fff" fill-opacity="0.9"/>"##,
            x - width / 2.0,
            y - 11.0
        );
        self.text(x, y, 11, "normal", colour, text);
    }

    /// The file.
    pub(super) fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        let markers: String = COLOURS
            .iter()
            .map(|colour| {
                format!(
                    "<marker id=\"{}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" \
                     orient=\"auto-start-reverse\"><path d=\"M0 0 L10 5 L0 10 z\" fill=\"{colour}\"/></marker>\n",
                    marker(colour)
                )
            })
            .collect();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n<defs>\n{markers}</defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn marker(colour: &str) -> String {
    format!("arrow{}", colour.trim_start_matches('#'))
}

/// Text as XML wants it.
pub(super) fn escape(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .map(|c| match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            other => other.to_string(),
        })
        .collect()
}
