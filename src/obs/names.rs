//! Names, texts and buckets of all metrics. The table in docs/metrics.md is tested against this
//! list.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Finished requests by `route`, HTTP `code` and `reason`.
pub const REQUESTS: &str = "pd_proxy_requests_total";
/// 1 for the standing of the gateway among those that share a fleet, by `standing`.
pub const SHARE_STANDING: &str = "pd_proxy_share_standing";
/// Gateways of a fleet that are heard, this one included.
pub const SHARE_HEARD: &str = "pd_proxy_share_heard";
/// 1 while limits of keys hold over all gateways, 0 while this one has its part of them.
pub const SHARE_BUDGETS: &str = "pd_proxy_share_budgets";
/// Gateways among which limits of keys are divided, as last counted.
pub const SHARE_GATEWAYS: &str = "pd_proxy_share_gateways";
/// Requests of a fleet that gateways share, `by` who chose their prefiller.
pub const SHARE_PLACEMENTS: &str = "pd_proxy_share_placements_total";
/// Requests that another fleet was asked for, by `to` and `reason`; the label `fleet` is the one
/// that could not serve them.
pub const FALLBACKS: &str = "pd_proxy_fallbacks_total";
/// Requests of models with `models.targets`, `by` what their fleet was chosen: request, session,
/// response.
pub const SHARED_OUT: &str = "pd_proxy_split_requests_total";
/// Requests being served.
pub const INFLIGHT: &str = "pd_proxy_inflight_requests";
/// Requests waiting to be let in.
pub const QUEUED: &str = "pd_proxy_queued_requests";
/// Open client connections.
pub const CONNECTIONS: &str = "pd_proxy_open_connections";
/// Time until the first byte of the answer.
pub const TTFT: &str = "pd_proxy_time_to_first_token_seconds";
/// Mean time per output token after the first.
pub const TPOT: &str = "pd_proxy_time_per_output_token_seconds";
/// The longest pause in each stream.
pub const GAP_MAX: &str = "pd_proxy_inter_token_gap_max_seconds";
/// Time until the end of the answer.
pub const DURATION: &str = "pd_proxy_request_duration_seconds";
/// Time of one leg on one engine: prefill until its answer, decode until its first byte.
pub const LEG_SECONDS: &str = "pd_proxy_leg_duration_seconds";
/// Failed legs by engine and reason.
pub const LEG_FAILURES: &str = "pd_proxy_leg_failures_total";
/// Answers of engines with a 4xx, by `role`, `engine` and `status`.
pub const REFUSALS: &str = "pd_proxy_refusals_total";
/// Legs that were tried again.
pub const RETRIES: &str = "pd_proxy_retries_total";
/// Further attempts that were not made, since retries had taken their share of the traffic.
pub const RETRIES_DENIED: &str = "pd_proxy_retries_denied_total";
/// Streams that broke, by what became of them.
pub const CONTINUATIONS: &str = "pd_proxy_continuations_total";
/// Tokens that engines reported, by `kind`: prompt, cached, output.
pub const TOKENS: &str = "pd_proxy_tokens_total";
/// Outcomes of hand-offs: used, released, expired.
pub const HANDOFFS: &str = "pd_proxy_handoffs_total";
/// Legs that failed with another engine's KV, by `role` and `engine` of either, and by whether it
/// is `blamed`.
pub const HANDOFF_FAILURES: &str = "pd_proxy_handoff_failures_total";
/// Requests that went to a decoder alone.
pub const BYPASSED: &str = "pd_proxy_prefill_bypassed_total";
/// Prompts by whether their tokens were known, and by the reason if not.
pub const PROMPTS: &str = "pd_proxy_prompts_total";
/// Time to find a prompt's tokens.
pub const PROMPT_SECONDS: &str = "pd_proxy_prompt_seconds";
/// Look-ups in the cache of prompt prefixes, by `outcome`: hit, miss.
pub const PROMPT_CACHE: &str = "pd_proxy_prompt_cache_lookups_total";
/// Comparisons of our tokens with an engine's, by `verdict`.
pub const PARITY: &str = "pd_proxy_token_parity_checks_total";
/// 1 when tokens computed here are known to be the engines'.
pub const PROVEN: &str = "pd_proxy_tokens_proven";
/// 1 when it is known how the engines name KV blocks.
pub const NAMING: &str = "pd_proxy_block_names_known";
/// 1 while nothing that own prefills stored is found by its names, by `source`: pool, events.
pub const UNFOUND: &str = "pd_proxy_block_names_unfound";
/// Questions to the pool, by `pool` and `verdict`.
pub const POOL_LOOKUPS: &str = "pd_proxy_pool_lookups_total";
/// Time that a request spent on the pool's answer, forming the question included.
pub const POOL_SECONDS: &str = "pd_proxy_pool_lookup_seconds";
/// Prompts that the pool was not asked about, by `reason`.
pub const POOL_UNASKED: &str = "pd_proxy_pool_unasked_total";
/// Prompts whose KV a pool is to carry, by `outcome`: there, waited, gave_up, no_answer.
pub const POOL_WAITS: &str = "pd_proxy_pool_waits_total";
/// Time that a request waited until the pool had its prompt.
pub const POOL_WAIT_SECONDS: &str = "pd_proxy_pool_wait_seconds";
/// KV that decoders offered back, by `outcome`: kept, dropped, used, refused.
pub const KV_OFFERS: &str = "pd_proxy_kv_offers_total";
/// Prompt tokens that prefillers could read from decoders.
pub const KV_OFFERED_TOKENS: &str = "pd_proxy_kv_offered_tokens_total";
/// Requests that wait for a prefiller.
pub const WAITING: &str = "pd_proxy_prefill_waiting_requests";
/// Time that a request waited for its prefiller.
pub const WAIT_SECONDS: &str = "pd_proxy_prefill_wait_seconds";
/// Predictions of cached tokens, by `verdict` and `reason`.
pub const PREDICTIONS: &str = "pd_proxy_cached_predictions_total";
/// Predictions of cached tokens of decoders that computed prompts themselves, by `verdict`.
pub const DECODER_PREDICTIONS: &str = "pd_proxy_decoder_cached_predictions_total";
/// Cached tokens by which prefillers' reports differ from the prediction, by `direction`: more,
/// less.
pub const PREDICTION_ERROR: &str = "pd_proxy_cached_prediction_error_tokens";
/// Seconds from a request's placing to its prefiller's answer, divided by those that were
/// predicted.
pub const PREFILL_RATIO: &str = "pd_proxy_prefill_seconds_over_predicted";
/// 1 while a `source` of predictions steers.
pub const BELIEVED: &str = "pd_proxy_prediction_source_trusted";
/// 1 while a prefiller's KV events come in, by `engine` and `rank`.
pub const EVENTS_CONNECTED: &str = "pd_proxy_events_connected";
/// 1 while all blocks that a rank holds are known from its events.
pub const EVENTS_COMPLETE: &str = "pd_proxy_events_complete";
/// Events of a rank, by their fate (`what`).
pub const EVENTS: &str = "pd_proxy_events_total";
/// Blocks known of a rank, by `place`: own, pool.
pub const EVENTS_BLOCKS: &str = "pd_proxy_events_blocks";
/// Prompts looked up in what events told, by `outcome`: hit, told, miss.
pub const EVENTS_LOOKUPS: &str = "pd_proxy_events_lookups_total";
/// Leading tokens of these prompts that the best prefiller held.
pub const EVENTS_HELD_TOKENS: &str = "pd_proxy_events_held_tokens_total";
/// Time of such a look-up.
pub const EVENTS_SECONDS: &str = "pd_proxy_events_lookup_seconds";
/// 0 while an engine takes its share, 1 while it is tried, 2 while it rests, by `role` and
/// `engine`.
pub const BREAKER: &str = "pd_proxy_breaker_state";
/// 1 for the state of an engine, by `role`, `engine` and `state`.
pub const ENGINE_STATE: &str = "pd_proxy_engine_state";
/// 1 for the state of a role, by `role` and `state`.
pub const ROLE_STATE: &str = "pd_proxy_role_state";
/// Rests that began, by `role` and `engine`.
pub const TRIPS: &str = "pd_proxy_breaker_trips_total";
/// Probes by `role`, `engine` and `outcome`: alive, dead, silent.
pub const PROBES: &str = "pd_proxy_probes_total";
/// Restarts of engines that were noticed, by `role` and `engine`.
pub const RESTARTS: &str = "pd_proxy_engine_restarts_total";
/// Prompts that a prefiller computed and did not hand over, though its dialect does, by `role` and
/// `engine`.
pub const WITHOUT_HANDOFF: &str = "pd_proxy_prefills_without_handoff_total";
/// Looks at a changed configuration, by `outcome`: applied, partial, refused.
pub const RELOADS: &str = "pd_proxy_config_reloads_total";
/// Keys whose new value waits for a restart of the gateway.
pub const PENDING: &str = "pd_proxy_config_pending_keys";
/// Looks for engines by `source` (file, dns) and `outcome`: same, changed, failed.
pub const DISCOVERIES: &str = "pd_proxy_discovery_total";
/// Engines that may be chosen, by `role`.
pub const INSTANCES: &str = "pd_proxy_engines";
/// Predicted seconds for which the work that waits and runs takes one engine, by `role`.
pub const WORK_SECONDS: &str = "pd_proxy_work_seconds";
/// Load as a share of what the engines of a `role` just bear within the targets.
pub const SATURATION: &str = "pd_proxy_saturation";
/// Engines that would bear the load of a `role`.
pub const ENGINES_NEEDED: &str = "pd_proxy_engines_needed";
/// Requests by `key`, the name of whose key they came with, and `outcome`: ok, refused, failed,
/// client_gone.
pub const KEY_REQUESTS: &str = "pd_proxy_key_requests_total";
/// Tokens by `key` and `kind`: prompt, output.
pub const KEY_TOKENS: &str = "pd_proxy_key_tokens_total";
/// Requests without a key that is known, by `reason`.
pub const KEY_REFUSALS: &str = "pd_proxy_key_refusals_total";
/// Readings of a changed file of keys, by `outcome`: loaded, broken.
pub const KEY_READINGS: &str = "pd_proxy_key_file_readings_total";
/// Requests that were turned away for want of room, by `reason`.
pub const TURNED_AWAY: &str = "pd_proxy_turned_away_total";
/// Calls of decoders that were asked first, by `outcome`.
pub const CALLBACKS: &str = "pd_proxy_callbacks_total";
/// Spans of traced requests, by `outcome`: sent, dropped, failed, rejected.
pub const TRACE_SPANS: &str = "pd_proxy_trace_spans_total";
/// Always 1, with the version as label.
pub const BUILD_INFO: &str = "pd_proxy_build_info";

/// Every name, for tests.
pub const ALL: [&str; 75] = [
    CALLBACKS,
    REQUESTS,
    INFLIGHT,
    QUEUED,
    CONNECTIONS,
    TTFT,
    TPOT,
    GAP_MAX,
    DURATION,
    LEG_SECONDS,
    LEG_FAILURES,
    REFUSALS,
    RETRIES,
    RETRIES_DENIED,
    CONTINUATIONS,
    TOKENS,
    HANDOFFS,
    HANDOFF_FAILURES,
    FALLBACKS,
    SHARED_OUT,
    BYPASSED,
    PROMPTS,
    PROMPT_SECONDS,
    PROMPT_CACHE,
    PARITY,
    PROVEN,
    NAMING,
    UNFOUND,
    POOL_LOOKUPS,
    POOL_SECONDS,
    POOL_UNASKED,
    POOL_WAITS,
    POOL_WAIT_SECONDS,
    KV_OFFERS,
    KV_OFFERED_TOKENS,
    WAITING,
    SHARE_STANDING,
    SHARE_HEARD,
    SHARE_BUDGETS,
    SHARE_GATEWAYS,
    SHARE_PLACEMENTS,
    WAIT_SECONDS,
    PREDICTIONS,
    DECODER_PREDICTIONS,
    PREDICTION_ERROR,
    PREFILL_RATIO,
    BELIEVED,
    EVENTS_CONNECTED,
    EVENTS_COMPLETE,
    EVENTS,
    EVENTS_BLOCKS,
    EVENTS_LOOKUPS,
    EVENTS_HELD_TOKENS,
    EVENTS_SECONDS,
    BREAKER,
    ENGINE_STATE,
    ROLE_STATE,
    TRIPS,
    PROBES,
    RESTARTS,
    WITHOUT_HANDOFF,
    RELOADS,
    PENDING,
    DISCOVERIES,
    INSTANCES,
    KEY_REQUESTS,
    KEY_TOKENS,
    KEY_REFUSALS,
    KEY_READINGS,
    TURNED_AWAY,
    TRACE_SPANS,
    BUILD_INFO,
    WORK_SECONDS,
    SATURATION,
    ENGINES_NEEDED,
];

/// From a cache hit on a small model to a prompt of a million tokens.
const LONG_S: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 180.0, 600.0,
];
/// A fifth to five times, fine around one.
const RATIO: [f64; 12] = [0.2, 0.4, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0];
/// From a short prompt to a million tokens asked of a slow engine.
const SHORT_S: [f64; 10] = [0.000_02, 0.000_05, 0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0];
/// From a small model to an overloaded one.
const TOKEN_S: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0];

/// From a block to a long prompt.
const TOKENS_WIDE: [f64; 12] =
    [0.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0];

/// Bucket bounds of each histogram, in seconds or in what its name says.
pub(super) fn buckets() -> Vec<(&'static str, &'static [f64])> {
    vec![
        (PROMPT_SECONDS, &SHORT_S),
        (POOL_SECONDS, &SHORT_S),
        (POOL_WAIT_SECONDS, &LONG_S),
        (WAIT_SECONDS, &LONG_S),
        (PREDICTION_ERROR, &TOKENS_WIDE),
        (PREFILL_RATIO, &RATIO),
        (EVENTS_SECONDS, &SHORT_S),
        (TTFT, &LONG_S),
        (DURATION, &LONG_S),
        (LEG_SECONDS, &LONG_S),
        (GAP_MAX, &LONG_S),
        (TPOT, &TOKEN_S),
    ]
}

/// Gives the metrics of what failed, or could have been stranded, their help texts.
fn describe_failures() {
    describe_counter!(
        HANDOFFS,
        "Hand-offs by outcome: used by a decoder, released by the gateway, left to expire"
    );
    describe_counter!(RETRIES, "Legs that were tried again, by reason");
    describe_counter!(RETRIES_DENIED, "Attempts not made because of the retry budget, by role");
    describe_counter!(
        CONTINUATIONS,
        "Streams that broke, by outcome (resumed, failed, refused) and by what broke them, or why they can't be continued"
    );
}

/// Gives the metrics of what decoders offer back their help texts.
fn describe_offers() {
    describe_counter!(KV_OFFERS, "KV that decoders offered back, by outcome: kept, dropped, used, refused");
    describe_counter!(KV_OFFERED_TOKENS, "Prompt tokens that prefillers could read from decoders");
}

/// Gives the metrics of instances their help texts: of all that have the label `engine`, and of
/// no others.
pub(super) fn describe_instances() {
    describe_histogram!(
        LEG_SECONDS,
        Unit::Seconds,
        "Prefill leg until its answer, decode leg until its first byte"
    );
    describe_counter!(LEG_FAILURES, "Legs that failed, by engine and reason");
    describe_counter!(
        HANDOFF_FAILURES,
        "Legs that failed with another engine's KV, for each of the two, by who is blamed: itself, other, pair, unknown"
    );
    describe_counter!(REFUSALS, "Answers of engines with a 4xx, by status");
    describe_gauge!(BREAKER, "0 while an engine takes its share, 1 while it is tried, 2 while it rests");
    describe_gauge!(ENGINE_STATE, "1 for the state of an engine: unknown, up, down, draining; else 0");
    describe_counter!(TRIPS, "Rests of engines that began");
    describe_counter!(PROBES, "Probes of engines, by outcome: alive, dead, refused, silent");
    describe_counter!(RESTARTS, "Restarts of engines that were noticed");
    describe_counter!(WITHOUT_HANDOFF, "Prompts that a prefiller computed and did not hand over");
    describe_gauge!(EVENTS_CONNECTED, "1 while a prefiller's KV events come in, else 0");
    describe_gauge!(
        EVENTS_COMPLETE,
        "1 while all blocks that a rank holds are known from its events, else 0"
    );
    describe_counter!(EVENTS, "What happened to the KV events of a rank, by what");
    describe_gauge!(
        EVENTS_BLOCKS,
        "Blocks known of a rank, by place: own (its own memory), pool (put there)"
    );
}

/// Gives each other metric its help text.
pub(super) fn describe() {
    describe_failures();
    describe_offers();
    describe_counter!(
        REQUESTS,
        "Finished requests by route, HTTP code and reason (ok, engine, or our error code)"
    );
    describe_gauge!(INFLIGHT, "Requests being served");
    describe_gauge!(QUEUED, "Requests waiting to be let in");
    describe_gauge!(CONNECTIONS, "Open client connections");
    describe_histogram!(TTFT, Unit::Seconds, "Time from the request's head to the first byte of its answer");
    describe_histogram!(TPOT, Unit::Seconds, "Mean time per output token after the first, streams only");
    describe_histogram!(GAP_MAX, Unit::Seconds, "Longest pause between two pieces of one stream");
    describe_histogram!(DURATION, Unit::Seconds, "Time from the request's head to the end of its answer");
    describe_counter!(TOKENS, "Tokens that engines reported, by kind: prompt, cached, output");
    describe_counter!(FALLBACKS, "Requests that another fleet was asked for, by fleet, to and reason");
    describe_counter!(SHARED_OUT, "Requests of models with models.targets, by fleet and by");
    describe_counter!(BYPASSED, "Requests sent to a decoder without a prefill leg, by reason");
    describe_counter!(
        PROMPTS,
        "Prompts by tokens (exact, prefix, unknown) and the reason why not all are known"
    );
    describe_histogram!(PROMPT_SECONDS, Unit::Seconds, "Time to find a prompt's tokens");
    describe_counter!(PROMPT_CACHE, "Look-ups of prompt prefixes in the local cache, by outcome: hit, miss");
    describe_counter!(
        PARITY,
        "Comparisons of local tokens with an engine's, by verdict: same, different, untested, unknown"
    );
    describe_gauge!(PROVEN, "1 when tokens computed here are known to be the engines', else 0");
    describe_gauge!(NAMING, "1 when it is known how the engines name KV blocks, else 0");
    describe_gauge!(UNFOUND, "1 while nothing that own prefills stored is found by its names, else 0");
    describe_counter!(
        POOL_LOOKUPS,
        "Questions to the pool, by verdict: answered, partial, timed_out, off, unreachable, refused, busy"
    );
    describe_histogram!(POOL_SECONDS, Unit::Seconds, "Time that a request spent on the pool's answer");
    describe_counter!(POOL_UNASKED, "Prompts that the pool was not asked about, by reason");
    describe_counter!(
        POOL_WAITS,
        "Prompts asked for between the legs, where a pool carries the KV, by outcome: there, waited, gave_up, no_answer"
    );
    describe_histogram!(
        POOL_WAIT_SECONDS,
        Unit::Seconds,
        "Time that decoders were kept waiting for the pool"
    );
    describe_routing();
    describe_events();
    describe_keys();
    describe_changes();
    describe_gauge!(INSTANCES, "Engines that may be chosen, by role");
    describe_gauge!(
        WORK_SECONDS,
        Unit::Seconds,
        "Predicted seconds for which what waits and runs takes one engine of a role"
    );
    describe_gauge!(SATURATION, "Load of a role as a share of what its engines just bear within [autoscale]");
    describe_gauge!(ENGINES_NEEDED, "Engines of a role that would bear its load within [autoscale]");
    describe_gauge!(ROLE_STATE, "1 for the state of a role: unknown, up, degraded, down, draining; else 0");
    describe_counter!(
        TRACE_SPANS,
        "Spans of traced requests, by outcome: sent, dropped (no room), failed, rejected"
    );
    describe_gauge!(BUILD_INFO, "Always 1; the version is a label");
}

/// Describes the metrics of requests that wait for prefillers, and of their predictions.
fn describe_routing() {
    describe_gauge!(WAITING, "Requests that wait in the gateway for a prefiller");
    describe_gauge!(SHARE_STANDING, "1 for how the gateway stands to those that share its engines, else 0");
    describe_gauge!(SHARE_HEARD, "Gateways of a shared fleet that are heard, this one included");
    describe_gauge!(
        SHARE_BUDGETS,
        "1 while limits of keys hold over all gateways, 0 while this one has its part"
    );
    describe_gauge!(SHARE_GATEWAYS, "Gateways among which limits of keys are divided, as last counted");
    describe_counter!(SHARE_PLACEMENTS, "Requests of a shared fleet, by who chose their prefiller");
    describe_histogram!(
        WAIT_SECONDS,
        Unit::Seconds,
        "Time that a request waited in the gateway for its prefiller"
    );
    describe_counter!(
        PREDICTIONS,
        "Cached tokens predicted against reported: verdict cold, unforeseen, hit, partial, miss, silent; reason of a miss"
    );
    describe_counter!(
        DECODER_PREDICTIONS,
        "Cached tokens predicted of decoders that computed prompts themselves against reported, by verdict"
    );
    describe_histogram!(
        PREDICTION_ERROR,
        "Cached tokens that the prefiller reported more, or less, than was predicted; of equal numbers 0 more"
    );
    describe_histogram!(
        PREFILL_RATIO,
        "Seconds from a request's placing to its prefiller's answer, divided by those that were predicted"
    );
    describe_gauge!(
        BELIEVED,
        "1 while a source of predictions (names, history, decoders, answers) steers, else 0"
    );
}

/// Describes the metrics of lookups in engines' own reports of their blocks.
fn describe_events() {
    describe_counter!(EVENTS_LOOKUPS, "Prompts looked up in what events told, by outcome: hit, told, miss");
    describe_counter!(EVENTS_HELD_TOKENS, "Leading tokens of prompts that the best prefiller held");
    describe_histogram!(EVENTS_SECONDS, Unit::Seconds, "Time to look a prompt up in what events told");
}

/// Describes the metrics by key, and of requests that are turned away.
fn describe_keys() {
    describe_counter!(
        KEY_REQUESTS,
        "Requests by the name of their key and outcome: ok, refused, failed, client_gone"
    );
    describe_counter!(KEY_TOKENS, "Tokens by the name of their key and kind: prompt, output");
    describe_counter!(
        KEY_REFUSALS,
        "Requests without a key that is known, by reason: missing, unknown, grant"
    );
    describe_counter!(KEY_READINGS, "Readings of a changed file of keys, by outcome: loaded, broken");
    describe_counter!(
        CALLBACKS,
        "Calls of decoders that were asked first, by outcome: taken, again, unknown, failed, bad"
    );
    describe_counter!(
        TURNED_AWAY,
        "Requests turned away for want of room, by reason: queue_full, queue_share, queue_wait, key_inflight, \
         key_tokens, slo, prefill_inflight, decode_inflight, body_memory, body_unread, \
         prefill_busy, decode_busy"
    );
}

/// Describes the metrics of changes of the fleet and the configuration.
fn describe_changes() {
    describe_counter!(RELOADS, "Looks at a changed configuration, by outcome: applied, partial, refused");
    describe_gauge!(PENDING, "Keys of the configuration whose new value waits for a restart of the gateway");
    describe_counter!(DISCOVERIES, "Looks for engines by source and outcome: same, changed, failed");
}
