//! An engine's load, as it tells in `GET /metrics` (vLLM 0.6 to 0.32).

use bytes::Bytes;

use crate::codec::json::{Object, ScanLimits};

/// Most lines that are looked at: an engine with 1 000 ranks and adapters has fewer.
const MAX_LINES: usize = 200_000;

/// Most data-parallel ranks of one engine.
const MAX_RANKS: usize = 256;

/// Load and room of one data-parallel rank of an engine; most engines have one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests in its batches.
    pub running: f64,
    /// Requests in its queues.
    pub waiting: f64,
    /// Share of its KV memory that is in use.
    pub kv_used: f64,
    /// Tokens that fit into its KV memory; 0 = it does not say.
    pub kv_capacity_tokens: u64,
}

impl EngineLoad {
    /// Tokens in its KV memory.
    pub fn kv_tokens(&self) -> f64 {
        self.kv_used * self.kv_capacity_tokens as f64
    }
}

/// The load in the text of `GET /metrics`, by rank (the label `engine`); empty when it has no such
/// lines.
pub fn read(text: &str) -> Vec<EngineLoad> {
    let mut loads: Vec<EngineLoad> = Vec::new();
    let mut found = false;
    for line in text.lines().take(MAX_LINES) {
        let Some(rest) = line.strip_prefix("vllm:") else { continue };
        let Some((name, value)) = sample(rest) else { continue };
        let rank = number(rest, "engine").and_then(|rank| usize::try_from(rank).ok()).unwrap_or(0);
        if rank >= MAX_RANKS {
            continue;
        }
        let mut of_rank = |set: &dyn Fn(&mut EngineLoad)| {
            if loads.len() <= rank {
                loads.resize(rank + 1, EngineLoad::default());
            }
            set(&mut loads[rank]);
        };
        match name {
            "num_requests_running" => {
                of_rank(&|load| load.running += value);
                found = true;
            }
            "num_requests_waiting" => of_rank(&|load| load.waiting += value),
            // The second name is that of releases before 0.11.
            "kv_cache_usage_perc" | "gpu_cache_usage_perc" => of_rank(&|load| load.kv_used = value.min(1.0)),
            "cache_config_info" => of_rank(&|load| load.kv_capacity_tokens = capacity(rest).unwrap_or(0)),
            _ => {}
        }
    }
    if found { loads } else { Vec::new() }
}

/// Number of data-parallel ranks that answer behind the port whose `GET /metrics` this is, numbered
/// from 0. `None` when it does not tell, or names ranks of a larger whole (a node of several with a
/// balancer of its own).
pub fn ranks(text: &str) -> Option<u16> {
    let samples =
        text.lines().take(MAX_LINES).filter_map(|line| line.strip_prefix("vllm:num_requests_running{"));
    let mut named = [false; MAX_RANKS];
    for sample in samples {
        let rank = number(&format!("{{{sample}"), "engine").and_then(|rank| usize::try_from(rank).ok())?;
        *named.get_mut(rank)? = true;
    }
    let count = named.iter().take_while(|named| **named).count();
    let whole = count > 0 && named.iter().skip(count).all(|named| !named);
    whole.then(|| u16::try_from(count).ok()).flatten()
}

/// Time at which the process began, in Unix seconds, in the text of `GET /metrics`; `None` when it
/// does not say.
pub fn start_s(text: &str) -> Option<f64> {
    let of_line = |line: &str| line.strip_prefix("process_start_time_seconds ")?.trim().parse::<f64>().ok();
    text.lines().take(MAX_LINES).find_map(of_line).filter(|start_s| start_s.is_finite() && *start_s > 0.0)
}

/// True if an engine's answer to `/is_scaling_elastic_ep` says that it is scaled, or left out of
/// the scaled deployment.
pub fn is_scaling(body: &Bytes) -> bool {
    let answer = Object::scan(body.clone(), ScanLimits::default());
    answer.is_ok_and(|answer| answer.get("is_scaling_elastic_ep").is_some_and(|says| says.raw() == b"true"))
}

/// Name and value of a line, `name{labels} value`.
fn sample(line: &str) -> Option<(&str, f64)> {
    let end = line.find(['{', ' '])?;
    let value = line.rsplit(' ').next()?.parse::<f64>().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (&line[..end], value))
}

fn capacity(line: &str) -> Option<u64> {
    number(line, "num_gpu_blocks")?.checked_mul(number(line, "block_size")?)
}

/// The value of a label that is a number.
fn number(line: &str, label: &str) -> Option<u64> {
    let of = |first: char| line.split_once(&format!("{first}{label}=\"")).map(|(_, rest)| rest);
    of(',').or_else(|| of('{'))?.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_a_load_of_its_own() {
        let text = concat!(
            "# TYPE vllm:num_requests_running gauge\n",
            "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n",
            "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n",
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n",
            "vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 2.0\n",
            "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n",
            "vllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n",
            "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",num_gpu_blocks=\"1000\"} 1.0\n",
            "vllm:cache_config_info{block_size=\"32\",engine=\"1\",num_gpu_blocks=\"2000\"} 1.0\n",
        );
        let first = EngineLoad { running: 3.0, waiting: 2.0, kv_used: 0.5, kv_capacity_tokens: 32_000 };
        let second = EngineLoad { running: 4.0, waiting: 0.0, kv_used: 0.25, kv_capacity_tokens: 64_000 };
        assert_eq!(read(text), [first, second]);
        assert!((first.kv_tokens() - 16_000.0).abs() < 1e-9);
    }

    #[test]
    fn ranks_are_counted_where_they_are_all_there() {
        let of = |ranks: &[&str]| {
            let line = |rank: &&str| {
                format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"m\"}} 0.0\n")
            };
            super::ranks(&ranks.iter().map(line).collect::<String>())
        };
        assert_eq!((of(&["0"]), of(&["0", "1"]), of(&["1", "0", "2", "2"])), (Some(1), Some(2), Some(3)));
        assert_eq!(
            (of(&[]), of(&["4", "5"]), of(&["0", "2"]), of(&["0", "999"]), of(&["x"])),
            (None, None, None, None, None)
        );
        assert_eq!(super::ranks("vllm:num_requests_running{model_name=\"m\"} 0.0\n"), None);
    }

    #[test]
    fn a_process_says_when_it_began() {
        let text =
            "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79044716548e+09\nx 1\n";
        assert_eq!(start_s(text), Some(1_790_447_165.48));
        assert_eq!(start_s("process_start_time_seconds NaN\n"), None);
        assert_eq!(start_s(""), None);
    }

    #[test]
    fn foreign_metrics_have_no_load() {
        assert_eq!(read("http_requests_total 5\n"), []);
        assert_eq!(read("vllm:num_requests_running{} NaN\nvllm:num_requests_running"), []);
        assert_eq!(
            read("vllm:num_requests_running{engine=\"999999\"} 1\n"),
            [],
            "no engine has so many ranks"
        );
    }

    #[test]
    fn a_real_engine_is_read() {
        let text = "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n";
        assert_eq!(read(text), [EngineLoad::default()]);
    }
}
