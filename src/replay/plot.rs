//! A plot of policies over load, as SVG: times to the first token, and the share within the SLO.
//!
//! Colours are set by style rules, so that a viewer in dark mode has light lines on a dark ground.
//! Lines differ in dashes and marks as well as in colour, and each has its name at its end.

use std::fmt::Write;

use super::table::Trial;

/// The runs at one load.
#[derive(Clone, Debug)]
pub struct PlotLoad {
    /// Load of the runs.
    pub load: f64,
    /// A trial per policy, in the same order at each load.
    pub trials: Vec<Trial>,
}

/// One of the two charts.
struct Chart {
    title: &'static str,
    /// Title of the axis below.
    axis: &'static str,
    left: f64,
    /// Values are drawn by their logarithm: times of policies differ by factors.
    logarithmic: bool,
    bounds: (f64, f64),
    measure: fn(&Trial) -> f64,
}

const WIDTH: f64 = 1_160.0;
const TOP: f64 = 60.0;
const CHART_WIDTH: f64 = 380.0;
const CHART_HEIGHT: f64 = 320.0;
const LEFTS: [f64; 2] = [60.0, 640.0];
/// Height of a line of the names.
const NAME_HEIGHT: f64 = 14.0;
/// Colours that differ for those who see few as well (Okabe and Ito), by light and dark ground.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8c42"),
    ("#007a5a", "#2fd3a5"),
    ("#b0508c", "#e79ac8"),
    ("#8a6d00", "#f0c93a"),
    ("#4b4bc8", "#a3a3ff"),
    ("#555555", "#bbbbbb"),
];
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// The plot of these runs. `title` says what was replayed.
#[must_use]
pub fn svg(title: &str, loads: &[PlotLoad]) -> String {
    drawn(title, &charts(loads), loads)
}

/// The plot of a policy's most requests per second over the number of prefillers, which stands in
/// place of the load.
#[must_use]
pub fn of_splits(title: &str, splits: &[PlotLoad]) -> String {
    let rates = splits.iter().flat_map(|at| &at.trials).map(|it| mean(it, |its| its.goodput_per_s));
    let most = rates.fold(0.0, f64::max);
    let chart = Chart {
        title: "requests per second within the SLO",
        axis: "prefillers",
        left: LEFTS[0],
        logarithmic: false,
        // Four steps of a whole number each.
        bounds: (0.0, 4.0 * (most / 4.0).ceil().max(1.0)),
        measure: |trial| mean(trial, |measures| measures.goodput_per_s),
    };
    drawn(title, &[chart], splits)
}

fn drawn(title: &str, charts: &[Chart], loads: &[PlotLoad]) -> String {
    let names: Vec<&str> =
        loads.first().map_or_else(Vec::new, |at| at.trials.iter().map(|trial| trial.policy).collect());
    let height = TOP + CHART_HEIGHT.max(names.len() as f64 * NAME_HEIGHT) + 60.0;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="11">"#
    );
    style(&mut out, names.len());
    let _ = writeln!(out, r#"<rect class="ground" width="{WIDTH}" height="{height}"/>"#);
    let title = escaped(title);
    let _ =
        writeln!(out, r#"<title>{title}</title><text x="{}" y="24" font-size="14">{title}</text>"#, LEFTS[0]);
    for chart in charts {
        chart.draw(&mut out, loads);
    }
    out.push_str("</svg>\n");
    out
}

fn charts(loads: &[PlotLoad]) -> [Chart; 2] {
    let all = || loads.iter().flat_map(|at| &at.trials).map(median_s);
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(0.0, f64::max);
    let decades = if least.is_finite() && most > 0.0 {
        let (low, high) = (least.log10().floor(), most.log10().ceil());
        (low, if high > low { high } else { low + 1.0 })
    } else {
        (-1.0, 1.0)
    };
    [
        Chart {
            title: "time to first token, median, s",
            axis: "load",
            left: LEFTS[0],
            logarithmic: true,
            bounds: decades,
            measure: median_s,
        },
        Chart {
            title: "requests within the SLO, %",
            axis: "load",
            left: LEFTS[1],
            logarithmic: false,
            bounds: (0.0, 100.0),
            measure: |trial| mean(trial, |measures| measures.slo_share * 1e2),
        },
    ]
}

/// Median time to the first token. Its logarithm is drawn, so it is never zero.
fn median_s(trial: &Trial) -> f64 {
    mean(trial, |measures| measures.ttft_p50_s.max(1e-3))
}

fn mean(trial: &Trial, measure: fn(&super::Measures) -> f64) -> f64 {
    trial.measures.iter().map(measure).sum::<f64>() / (trial.measures.len() as f64).max(1.0)
}

impl Chart {
    fn y(&self, value: f64) -> f64 {
        let at = if self.logarithmic { value.log10() } else { value };
        let share = (at - self.bounds.0) / (self.bounds.1 - self.bounds.0);
        TOP + CHART_HEIGHT * (1.0 - share.clamp(0.0, 1.0))
    }

    fn x(&self, load: f64, loads: &[PlotLoad]) -> f64 {
        let least = loads.iter().map(|at| at.load).fold(f64::INFINITY, f64::min);
        let most = loads.iter().map(|at| at.load).fold(0.0, f64::max);
        let share = if most > least { (load - least) / (most - least) } else { 0.5 };
        self.left + CHART_WIDTH * share
    }

    fn draw(&self, out: &mut String, loads: &[PlotLoad]) {
        self.axes(out, loads);
        let Some(last) = loads.last() else { return };
        let mut ends: Vec<(f64, usize)> =
            last.trials.iter().map(|trial| self.y((self.measure)(trial))).zip(0..).collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let places = spread(&ends.iter().map(|(y, _)| *y).collect::<Vec<_>>());
        for ((y, policy), place) in ends.into_iter().zip(places) {
            let (mut points, mut marks) = (String::new(), String::new());
            for at in loads {
                let Some(trial) = at.trials.get(policy) else { continue };
                let (x, y) = (self.x(at.load, loads), self.y((self.measure)(trial)));
                let _ = write!(points, "{x:.1},{y:.1} ");
                let _ =
                    writeln!(marks, r#"<circle class="mark p{policy}" cx="{x:.1}" cy="{y:.1}" r="2.5"/>"#);
            }
            let points = points.trim_end();
            let _ = writeln!(out, r#"<polyline class="line p{policy}" points="{points}"/>"#);
            out.push_str(&marks);
            let end = self.x(last.load, loads);
            let name = last.trials.get(policy).map_or("", |trial| trial.policy);
            let _ = writeln!(
                out,
                r#"<path class="lead p{policy}" d="M{:.1} {y:.1}L{:.1} {:.1}"/><text class="name p{policy}" x="{:.1}" y="{:.1}">{}</text>"#,
                end + 4.0,
                end + 22.0,
                place,
                end + 25.0,
                place + 4.0,
                escaped(name)
            );
        }
    }

    fn axes(&self, out: &mut String, loads: &[PlotLoad]) {
        let (left, right, bottom) = (self.left, self.left + CHART_WIDTH, TOP + CHART_HEIGHT);
        let _ = writeln!(out, r#"<text x="{left}" y="{}">{}</text>"#, TOP - 14.0, self.title);
        let ticks: Vec<f64> = if self.logarithmic {
            let decades = self.bounds.0 as i32..=self.bounds.1 as i32;
            decades.map(|decade| 10f64.powi(decade)).collect()
        } else {
            (0..=4).map(|nth| self.bounds.1 * f64::from(nth) / 4.0).collect()
        };
        for tick in ticks {
            let y = self.y(tick);
            let _ = writeln!(
                out,
                r#"<path class="grid" d="M{left} {y:.1}H{right}"/><text x="{}" y="{:.1}" text-anchor="end">{tick}</text>"#,
                left - 6.0,
                y + 4.0
            );
        }
        for at in loads {
            let (x, load) = (self.x(at.load, loads), at.load);
            let _ = writeln!(
                out,
                r#"<path class="grid" d="M{x:.1} {TOP}V{bottom}"/><text x="{x:.1}" y="{}" text-anchor="middle">{load}</text>"#,
                bottom + 16.0
            );
        }
        let middle = left + CHART_WIDTH / 2.0;
        let _ = writeln!(
            out,
            r#"<text x="{middle}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 34.0,
            self.axis
        );
    }
}

/// Heights of names at least a line apart, as near as can be to where their lines end: `ends` from
/// the highest to the lowest.
fn spread(ends: &[f64]) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(ends.len());
    for end in ends {
        places.push(places.last().map_or(*end, |above| end.max(above + NAME_HEIGHT)));
    }
    // Those that were pushed out at the bottom push back.
    let mut limit = TOP + CHART_HEIGHT.max(ends.len() as f64 * NAME_HEIGHT);
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - NAME_HEIGHT;
    }
    places
}

fn style(out: &mut String, policies: usize) {
    let (mut light, mut dark) = (String::new(), String::new());
    for policy in 0..policies {
        let (on_light, on_dark) = COLOURS[policy % COLOURS.len()];
        let dash = DASHES[policy / COLOURS.len() % DASHES.len()];
        let _ = write!(light, ".p{policy}{{color:{on_light}}}.line.p{policy}{{stroke-dasharray:{dash}}}");
        let _ = write!(dark, ".p{policy}{{color:{on_dark}}}");
    }
    let _ = writeln!(
        out,
        "<style>.ground{{fill:#ffffff}}text{{fill:#222222}}.grid{{stroke:#dddddd;fill:none}}\
         .line{{stroke:currentColor;fill:none;stroke-width:1.8}}.lead{{stroke:currentColor;stroke-width:0.6}}\
         .mark,.name{{fill:currentColor}}{light}\
         @media (prefers-color-scheme:dark){{.ground{{fill:#16181d}}text{{fill:#dddddd}}\
         .grid{{stroke:#3a3d45}}{dark}}}</style>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Measures;

    fn loads() -> Vec<PlotLoad> {
        let trial = |policy, ttft_p50_s, slo_share| Trial {
            policy,
            measures: vec![Measures { ttft_p50_s, slo_share, ..Measures::default() }],
        };
        let at = |load, factor: f64| PlotLoad {
            load,
            trials: vec![trial("ours", 0.5, 1.0), trial("theirs", 0.5 * factor, 1.0 / factor)],
        };
        vec![at(0.5, 1.0), at(0.75, 2.0), at(1.0, 20.0)]
    }

    #[test]
    fn each_policy_has_a_line_in_both_charts() {
        let plot = svg("a trace <of> ours", &loads());
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"), "{plot}");
        assert!(plot.contains("<title>a trace &lt;of&gt; ours</title>"), "{plot}");
        assert!(plot.contains("prefers-color-scheme:dark"), "{plot}");
        for policy in 0..2 {
            let lines = plot.matches(&format!(r#"<polyline class="line p{policy}""#)).count();
            assert_eq!(lines, 2, "{plot}");
        }
        assert_eq!(plot.matches("<circle ").count(), 2 * 2 * 3);
        assert_eq!(plot, svg("a trace <of> ours", &loads()), "the same runs give the same plot");
    }

    /// Load 1 is at the right end; 10 s are a decade above 1 s, and half of the requests are half
    /// of the height.
    #[test]
    fn points_are_where_their_values_are() {
        let loads = loads();
        let [times, shares] = charts(&loads);
        assert_eq!(times.bounds, (-1.0, 1.0));
        assert_eq!((times.y(10.0), times.y(1.0), times.y(0.1)), (60.0, 220.0, 380.0));
        assert_eq!((shares.y(100.0), shares.y(50.0)), (60.0, 220.0));
        assert_eq!((times.x(0.5, &loads), times.x(0.75, &loads), times.x(1.0, &loads)), (60.0, 250.0, 440.0));
    }

    #[test]
    fn splits_are_points_over_the_number_of_prefillers() {
        let split = |prefillers, rate| PlotLoad {
            load: prefillers,
            trials: vec![Trial {
                policy: "ours",
                measures: vec![Measures { goodput_per_s: rate, ..Measures::default() }],
            }],
        };
        let plot = of_splits("splits", &[split(1.0, 2.0), split(2.0, 4.0), split(3.0, 1.0)]);
        assert_eq!((plot.matches("<circle ").count(), plot.matches("<polyline ").count()), (3, 1), "{plot}");
        assert!(plot.contains(">prefillers</text>") && !plot.contains(">load</text>"), "{plot}");
        // Two of four is half of the height.
        assert!(plot.contains(r#"cx="60.0" cy="220.0""#), "{plot}");
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let places = spread(&[60.0, 61.0, 62.0, 379.0, 380.0]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= NAME_HEIGHT), "{places:?}");
        assert!(places.iter().all(|place| (TOP..=TOP + CHART_HEIGHT).contains(place)), "{places:?}");
        let many: Vec<f64> = vec![60.0; 30];
        assert!(spread(&many).windows(2).all(|pair| pair[1] - pair[0] >= NAME_HEIGHT));
    }

    #[test]
    fn nothing_to_plot_is_an_empty_plot() {
        assert!(svg("none", &[]).ends_with("</svg>\n"));
    }
}
