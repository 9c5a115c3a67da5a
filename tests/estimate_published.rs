//! KV capacity and weights against figures that real vLLM servers printed at start-up.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests of figures"
)]

use inferometer::estimate::{
    Architecture, Gpu, KvDtype, KvLayout, KvOptions, MemoryBudget, MemoryOptions, StateMode, Weights,
};
use serde::Deserialize;

const GIB: f64 = 1_073_741_824.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    server: Vec<Server>,
    budget: Vec<Budget>,
    weights: Vec<Loaded>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    name: String,
    config: String,
    kind: String,
    #[serde(default)]
    kv_gib: Option<f64>,
    max_model_len: u64,
    tokens: u64,
    log: String,
    #[serde(default)]
    tensor_parallel_size: Option<u64>,
    #[serde(default)]
    kv_cache_dtype: Option<String>,
    #[serde(default)]
    mamba_cache_mode: Option<StateMode>,
    #[serde(default)]
    concurrency: Option<f64>,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    name: String,
    config: String,
    gpu: String,
    #[serde(default)]
    tensor_parallel_size: Option<u64>,
    utilization: f64,
    kv_gib: f64,
    limit: f64,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loaded {
    name: String,
    config: String,
    gib: f64,
    source: String,
}

fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/data/estimate/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn model(name: &str) -> Architecture {
    Architecture::from_json(name, &read(&format!("{name}.json"))).unwrap()
}

fn published() -> Published {
    toml::from_str(&read("published.toml")).unwrap()
}

fn layout(server: &Server) -> KvLayout {
    let mut options =
        KvOptions { tensor_parallel_size: server.tensor_parallel_size.unwrap_or(1), ..KvOptions::default() };
    options.kv_cache_dtype =
        server.kv_cache_dtype.as_deref().map_or(KvDtype::Auto, |d| KvDtype::parse(d).unwrap());
    options.mamba_cache_mode = server.mamba_cache_mode.unwrap_or(StateMode::Align);
    KvLayout::new(&model(&server.config), &options).unwrap()
}

fn tokens(server: &Server, layout: &KvLayout, bytes: f64) -> (u64, f64) {
    let capacity = layout.capacity(bytes as u64, server.max_model_len);
    let tokens = if server.log == "from 0.21" { capacity.tokens } else { capacity.tokens_before_0_21 };
    (tokens, capacity.max_concurrency)
}

fn error(ours: f64, theirs: f64) -> f64 {
    (ours / theirs - 1.0).abs()
}

#[test]
fn capacity_from_the_servers_cache_memory() {
    let mut kinds = std::collections::BTreeSet::new();
    let mut pairs = 0;
    for server in published().server {
        assert!(server.source.starts_with("https://"), "{}", server.name);
        let Some(gib) = server.kv_gib else { continue };
        let layout = layout(&server);
        let (tokens, concurrency) = tokens(&server, &layout, gib * GIB);
        let off = error(tokens as f64, server.tokens as f64);
        println!("{:50} {:9} of {:9} tokens, {:.2} %", server.name, tokens, server.tokens, 100.0 * off);
        assert!(off <= 0.03, "{}: {tokens} for {}", server.name, server.tokens);
        if let Some(theirs) = server.concurrency {
            assert!(error(concurrency, theirs) <= 0.01, "{}: {concurrency} for {theirs}", server.name);
        }
        kinds.insert(server.kind);
        pairs += 1;
    }
    assert!(pairs >= 6);
    for kind in ["MLA", "mixture of experts", "sliding window", "hybrid", "dense"] {
        assert!(kinds.contains(kind), "{kind}");
    }
}

/// The whole way from config and GPU. Weights are exact to a few percent, the workspace is a rough estimate: where the
/// cache is what little the weights leave, the error is large, and the figures say so.
#[test]
fn cache_memory_from_the_gpu_alone() {
    for server in published().budget {
        let gpu = Gpu::find(&server.gpu).unwrap();
        let (max_num_batched_tokens, max_num_seqs) = gpu.server_defaults();
        let options = MemoryOptions {
            gpu_memory_utilization: server.utilization,
            tensor_parallel_size: server.tensor_parallel_size.unwrap_or(1),
            max_num_batched_tokens,
            max_num_seqs,
            kv_cache_memory_bytes: None,
            weights_bytes: None,
        };
        let budget = MemoryBudget::new(&model(&server.config), gpu.visible_bytes(), &options);
        let ours = budget.kv_cache / GIB;
        let off = error(ours, server.kv_gib);
        println!("{:50} {ours:6.2} of {:6.2} GiB, {:.1} %", server.name, server.kv_gib, 100.0 * off);
        assert!(off <= server.limit, "{}: {ours} for {} ({})", server.name, server.kv_gib, server.source);
    }
}

#[test]
fn weights_as_loaded() {
    for loaded in published().weights {
        let ours = Weights::of(&model(&loaded.config), 1).bytes / GIB;
        println!("{:30} {ours:.2} of {:.2} GiB", loaded.name, loaded.gib);
        assert!(
            error(ours, loaded.gib) <= 0.03,
            "{}: {ours} for {} ({})",
            loaded.name,
            loaded.gib,
            loaded.source
        );
    }
}
