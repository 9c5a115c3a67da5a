//! A workload: settings and requests with the steps at which they come and go.

use std::collections::BTreeMap;

use inferometer::engine::{
    EngineConfig, KvCacheGroup, MambaCacheMode, NewRequest, Prompt, SchedulingPolicy, Stream,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    #[serde(default)]
    pub description: String,
    pub engine: Settings,
    pub requests: Vec<Request>,
}

/// The recorder's settings with its defaults.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub num_gpu_blocks: u32,
    pub block_size: u64,
    pub max_num_batched_tokens: u64,
    pub max_num_scheduled_tokens: Option<u64>,
    pub max_num_seqs: u32,
    pub max_num_active_seqs: Option<u32>,
    pub max_model_len: u64,
    pub enable_prefix_caching: bool,
    pub enable_chunked_prefill: bool,
    pub long_prefill_token_threshold: u64,
    pub long_prefill_token_threshold_adaptive: bool,
    pub policy: SchedulingPolicy,
    pub async_scheduling: bool,
    pub scheduler_reserve_full_isl: bool,
    pub watermark: f64,
    pub hybrid: Option<Hybrid>,
    pub sliding_window: Option<SlidingWindow>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            num_gpu_blocks: 1024,
            block_size: 16,
            max_num_batched_tokens: 8192,
            max_num_scheduled_tokens: None,
            max_num_seqs: 256,
            max_num_active_seqs: None,
            max_model_len: 32768,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            policy: SchedulingPolicy::Fcfs,
            async_scheduling: false,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            hybrid: None,
            sliding_window: None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hybrid {
    pub mamba_groups: usize,
    #[serde(default)]
    pub prefix_match_unit: Option<u64>,
    #[serde(default = "zero")]
    pub retention_interval: Option<u64>,
}

#[expect(clippy::unnecessary_wraps, reason = "serde asks for the field's type")]
fn zero() -> Option<u64> {
    Some(0)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindow {
    pub groups: usize,
    pub window: u64,
    #[serde(default)]
    pub block_size: Option<u64>,
    #[serde(default = "yes")]
    pub full_attention: bool,
    #[serde(default = "zero")]
    pub retention_interval: Option<u64>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub id: String,
    #[serde(default)]
    pub arrival_step: u64,
    pub max_tokens: u64,
    #[serde(default)]
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_step: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_len: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_prefix_group: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_prefix_len: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Vec<(String, u64)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_len: Option<u64>,
}

impl Settings {
    /// The engine that these settings describe.
    pub fn config(&self) -> EngineConfig {
        let mut groups = Vec::new();
        let mut retention = Some(0);
        if self.sliding_window.as_ref().is_none_or(|w| w.full_attention) {
            groups.push(KvCacheGroup::FullAttention);
        }
        if let Some(w) = &self.sliding_window {
            let group = KvCacheGroup::SlidingWindow { sliding_window: w.window, block_size: w.block_size };
            groups.extend(std::iter::repeat_n(group, w.groups));
            retention = w.retention_interval;
        }
        if let Some(hybrid) = &self.hybrid {
            groups.extend(std::iter::repeat_n(KvCacheGroup::Mamba, hybrid.mamba_groups));
            retention = hybrid.retention_interval;
        }
        EngineConfig {
            max_model_len: self.max_model_len,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_scheduled_tokens: self.max_num_scheduled_tokens,
            max_num_seqs: self.max_num_seqs,
            max_num_active_seqs: self.max_num_active_seqs,
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            enable_prefix_caching: self.enable_prefix_caching,
            enable_chunked_prefill: self.enable_chunked_prefill,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            async_scheduling: self.async_scheduling,
            scheduling_policy: self.policy,
            scheduler_reserve_full_isl: self.scheduler_reserve_full_isl,
            watermark: self.watermark,
            mamba_cache_mode: if self.enable_prefix_caching {
                MambaCacheMode::Align
            } else {
                MambaCacheMode::None
            },
            mamba_shared_hits: false,
            prefix_match_unit: self.hybrid.as_ref().and_then(|h| h.prefix_match_unit),
            prefix_cache_retention_interval: retention,
            kv_cache_groups: groups,
        }
    }
}

impl Workload {
    /// The requests as the engine takes them; a request's number is its place in the list.
    pub fn requests(&self) -> Vec<NewRequest> {
        let numbers: BTreeMap<&str, u64> =
            self.requests.iter().enumerate().map(|(i, r)| (r.id.as_str(), i as u64)).collect();
        let mut streams = Streams { numbers: &numbers, texts: BTreeMap::new() };
        let mut prompts: Vec<Prompt> = Vec::new();
        for request in &self.requests {
            let prompt = self.prompt(request, &prompts, &mut streams);
            prompts.push(prompt);
        }
        self.requests
            .iter()
            .zip(prompts)
            .enumerate()
            .map(|(i, (r, prompt))| NewRequest {
                id: i as u64,
                prompt,
                max_tokens: r.max_tokens,
                stop_after: r.stop_after,
                priority: r.priority,
            })
            .collect()
    }

    fn prompt(&self, r: &Request, earlier: &[Prompt], streams: &mut Streams) -> Prompt {
        let mut prompt = Prompt::default();
        let own = format!("u:{}", r.id);
        if let Some(ids) = &r.prompt_token_ids {
            for id in ids {
                prompt.push(streams.of("explicit"), *id, 1);
            }
        } else if let Some(pieces) = &r.prompt {
            for (name, len) in pieces {
                prompt.push(streams.of(name), 0, *len);
            }
        } else if let Some(parent) = &r.continue_of {
            let place = streams.numbers[parent.as_str()] as usize;
            prompt.extend(&earlier[place]);
            let output = r.continue_len.unwrap_or(self.requests[place].max_tokens);
            prompt.push(Stream::output_of(place as u64), 0, output);
            prompt.push(streams.of(&own), 0, r.prompt_len.unwrap_or(0));
        } else {
            let (len, shared) = (r.prompt_len.unwrap_or(0), r.shared_prefix_len.unwrap_or(0));
            let group = match &r.shared_prefix_group {
                Some(serde_json::Value::String(name)) => format!("g:{name}"),
                Some(other) => format!("g:{other}"),
                None => "g:None".to_owned(),
            };
            prompt.push(streams.of(&group), 0, shared);
            prompt.push(streams.of(&own), 0, len - shared);
        }
        prompt
    }
}

struct Streams<'a> {
    numbers: &'a BTreeMap<&'a str, u64>,
    texts: BTreeMap<String, u64>,
}

impl Streams<'_> {
    fn of(&mut self, name: &str) -> Stream {
        if let Some(number) = name.strip_prefix("o:").and_then(|id| self.numbers.get(id)) {
            return Stream::output_of(*number);
        }
        let next = self.texts.len() as u64;
        Stream::text(*self.texts.entry(name.to_owned()).or_insert(next))
    }
}
