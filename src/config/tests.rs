use super::bounds::{bytes, ms, percent, port};
use super::table::Rule;
use super::*;
use std::path::Path;

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Reads both as their readers do, not as the generator of the reference writes.
#[test]
fn every_key_is_in_the_reference_and_the_commented_file_with_its_default() {
    let (page, file) = (document("docs/configuration.md"), document("config/pd-proxy.toml"));
    let file: toml::Table = file.parse().unwrap();
    let config = Config::default();
    let rows = config.rows();
    for row in &rows {
        let (section, name) = row.name.rsplit_once('.').unwrap();
        let part = page.split(&format!("\n## {section}\n")).nth(1).expect(section);
        let begins = format!("| `{name}` | ");
        let lines = part.lines().take_while(|line| !line.starts_with("## "));
        let said: Vec<&str> =
            lines.filter_map(|line| line.strip_prefix(&begins)?.split(" | ").next()).collect();
        let value = row.value.json();
        let shown = if value.is_null() { "unset".to_owned() } else { format!("`{value}`") };
        assert_eq!(said, [shown], "{}", row.name);
        let table = section.split('.').fold(&file, |table, part| table[part].as_table().unwrap());
        let said = table.get(name).map(|value| serde_json::to_value(value).unwrap()).unwrap_or_default();
        assert_eq!(said, value, "{}", row.name);
    }
    assert_eq!(page.lines().filter(|line| line.starts_with("| `")).count(), rows.len());
}

/// A default as the page of limits writes it, in the unit of the key: ms, bytes or a count.
fn number(text: &str) -> f64 {
    let digits: String = text.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
    let scale = match unit {
        "" | "ms" | "%" => 1,
        "s" => 1_000,
        "h" => 3_600_000,
        "KiB" | "KiB/s" | "Ki" => 1 << 10,
        "MiB" | "Mi ids" => 1 << 20,
        "GiB" => 1 << 30,
        other => panic!("{other:?} is no unit: {text}"),
    };
    digits.parse::<f64>().expect(text) * f64::from(scale)
}

#[test]
fn the_page_of_limits_says_the_defaults() {
    let config = Config::default();
    let rows = config.rows();
    let mut compared = 0;
    for line in document("docs/limits.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let values: Vec<&str> = cells[1].split([';', ',']).map(str::trim).collect();
        for (at, key) in cells[0].split('`').skip(1).step_by(2).enumerate() {
            let row = rows.iter().find(|row| row.name == key).unwrap_or_else(|| panic!("{key}"));
            let said = number(values.get(at).unwrap_or(&values[0]));
            assert_eq!(row.value.json().as_f64(), Some(said), "{key}");
            compared += 1;
        }
    }
    assert!(compared > 70, "{compared}");
}

#[test]
fn the_unit_in_a_name_is_that_of_its_bounds() {
    let largest = |rule| if let Rule::Within { max, .. } = rule { Some(max) } else { None };
    let config = Config::default();
    for row in config.rows() {
        for (unit, rule) in [("_ms", ms(0)), ("_bytes", bytes(0)), ("_percent", percent()), ("port", port(0))]
        {
            assert!(!row.name.ends_with(unit) || largest(row.rule) <= largest(rule), "{}", row.name);
        }
    }
}

/// A row's effect is the rule that reloads follow.
#[test]
fn a_running_gateway_takes_what_counts_at_once_and_nothing_else() {
    let running = Config::default();
    let mut new = Config::default();
    (new.retry.attempts, new.retry.budget, new.stream.keep_alive_ms) = (9, 9.0, 9);
    (new.fleet.ranks, new.fleet.probe_attempts) = (vec!["a:1=2".to_owned()], 9);
    new.server.admin_key = Some(Secret::new("a"));
    new.discovery.kubernetes.namespace = "n".to_owned();
    let next = running.updated_from(&new);
    let applied = ["server.admin_key", "fleet.probe_attempts", "retry.attempts", "stream.keep_alive_ms"];
    assert_eq!(running.differs(&next), applied);
    assert_eq!(next.differs(&new), ["fleet.ranks", "discovery.kubernetes.namespace", "retry.budget"]);
}
