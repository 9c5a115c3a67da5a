//! KV capacity from `config.json`: the values of public bug reports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inferometer::estimate::{Architecture, KvDtype, KvLayout, KvOptions, StateMode};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn read(path: &str) -> Result<Architecture, inferometer::error::Error> {
    let file = format!("{}/tests/cases/{path}", env!("CARGO_MANIFEST_DIR"));
    Architecture::from_json(path, &std::fs::read_to_string(file).unwrap())
}

fn layout(path: &str, options: &KvOptions) -> KvLayout {
    KvLayout::new(&read(path).unwrap(), options).unwrap()
}

fn expected(case: &str) -> serde_json::Value {
    let file = format!("{}/tests/cases/{case}/expect.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// LMCache#688: the head size is explicit where the file says it.
#[test]
fn c25_head_dim_is_explicit_where_given() {
    let expect = expected("C25");
    for name in ["config", "config_small", "config_head_dim_null"] {
        let bytes = layout(&format!("C25/{name}.json"), &KvOptions::default()).token_bytes;
        assert_eq!(bytes, expect[name]["kv_bytes_per_token"].as_u64().unwrap(), "{name}");
    }
}

/// LMCache#688, vllm#47929: every rank holds the whole latent vector.
#[test]
fn c27_latent_vectors_are_replicated() {
    let expect = &expected("C27")["kv_bytes_per_token_per_rank"];
    for tp in [1, 2, 4, 8] {
        for (dtype, key) in [
            (KvDtype::Auto, "auto_bf16_any_tp"),
            (KvDtype::Fp8, "fp8_any_tp"),
            (KvDtype::Fp8DsMla, "fp8_ds_mla_any_tp"),
        ] {
            let options =
                KvOptions { tensor_parallel_size: tp, kv_cache_dtype: dtype, ..KvOptions::default() };
            assert_eq!(
                layout("C27/config.json", &options).token_bytes,
                expect[key].as_u64().unwrap(),
                "{key} {tp}"
            );
        }
    }
    let tp8 = layout("C27/config.json", &KvOptions { tensor_parallel_size: 8, ..KvOptions::default() });
    let capacity = tp8.capacity(40 * GIB, 163_840);
    assert_eq!(capacity.tokens_before_0_21, 611_184);
    let drafting = KvOptions { num_speculative_tokens: 1, ..KvOptions::default() };
    assert_eq!(layout("C27/config.json", &drafting).token_bytes, 71_424);
    let spread =
        KvOptions { tensor_parallel_size: 8, decode_context_parallel_size: 4, ..KvOptions::default() };
    assert_eq!(
        layout("C27/config.json", &spread).capacity(40 * GIB, 163_840).tokens_before_0_21,
        4 * 611_184
    );
}

/// hf-mem#60, vllm#43308: one pool, and tokens depend on the length of the requests.
#[test]
fn c28_alternating_windows_share_a_pool() {
    let expect = expected("C28");
    let layout = layout("C28/config.json", &KvOptions::default());
    assert_eq!(layout.block_bytes, 589_824);
    assert_eq!(layout.token_bytes, 73_728);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "5.38 GiB")]
    let pool = (5.38 * GIB as f64) as u64;
    for (length, blocks) in expect["blocks_per_request"].as_object().unwrap() {
        let capacity = layout.capacity(pool, length.parse().unwrap());
        assert_eq!(capacity.num_blocks, 9_793);
        assert_eq!(capacity.blocks_per_request, blocks.as_u64().unwrap());
        assert!(
            (capacity.max_concurrency - expect["max_concurrency"][length].as_f64().unwrap()).abs() < 1e-12
        );
        assert_eq!(capacity.tokens, expect["new_log_tokens (concurrency*len)"][length].as_u64().unwrap());
        assert_eq!(capacity.tokens_before_0_21, 78_336);
    }
    assert_eq!(layout.blocks_for(8192, 0), 8192 / 16 + 9, "while it only decodes");
}

/// hf-mem#26: the language model is a part; an unknown part is an error, not a guess.
#[test]
fn c30_language_models_inside_composites() {
    for name in ["one_level", "two_levels", "vision_dims_on_top", "llm_config"] {
        let path = format!("C30/{name}.json");
        assert_eq!(layout(&path, &KvOptions::default()).token_bytes, 81_920, "{name}");
        assert_eq!(read(&path).unwrap().max_model_len, Some(262_144), "{name}");
    }
    let error = read("C30/unknown_wrapper.json").unwrap_err().to_string();
    assert!(error.contains("num_hidden_layers") && error.contains("decoder_stuff"), "{error}");
}

/// hf-mem#61: five windows to one full layer, with padding.
#[test]
fn c33_windows_by_pattern() {
    let expect = expected("C33");
    let windows = layout("C33/config.json", &KvOptions::default());
    assert_eq!(windows.groups.len(), 7);
    assert_eq!(windows.block_bytes, 1_310_720);
    let capacity = windows.capacity(40 * GIB, 32_768);
    assert_eq!(capacity.num_blocks, 32_768);
    assert_eq!(capacity.blocks_per_request, 5_510);
    assert!((capacity.max_concurrency - expect["max_concurrency_32768"].as_f64().unwrap()).abs() < 1e-12);
    assert_eq!((capacity.tokens, capacity.tokens_before_0_21), (194_871, 74_896));
    let off = KvOptions { disable_hybrid_kv_cache_manager: true, ..KvOptions::default() };
    let full = layout("C33/config.json", &off);
    assert_eq!(full.groups.len(), 1);
    // The report divides bytes by bytes; whole blocks hold a few tokens fewer.
    let tokens = full.capacity(40 * GIB, 32_768).tokens_before_0_21;
    assert!(tokens <= 84_562 && 84_562 - tokens < 16, "{tokens}");
}

/// The layout rules themselves: block sizes of hybrids that public reports name.
#[test]
fn hybrids_raise_the_block_until_a_page_holds_a_state() {
    let gated_delta = |dtype: &str, v_heads: u64| {
        let text = format!(
            r#"{{"num_hidden_layers":4,"hidden_size":2048,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,
            "intermediate_size":5120,"vocab_size":1,"dtype":"bfloat16","full_attention_interval":4,
            "linear_num_key_heads":16,"linear_num_value_heads":{v_heads},"linear_key_head_dim":128,
            "linear_value_head_dim":128,"linear_conv_kernel_dim":4,"mamba_ssm_dtype":"{dtype}"}}"#
        );
        KvLayout::new(&Architecture::from_json("c", &text).unwrap(), &KvOptions::default())
            .unwrap()
            .block_size
    };
    assert_eq!(gated_delta("bfloat16", 32), 544);
    assert_eq!(gated_delta("float32", 32), 1_056);
    let nemotron = r#"{"num_hidden_layers":4,"hidden_size":4480,"num_attention_heads":40,"num_key_value_heads":8,
        "head_dim":128,"intermediate_size":15680,"vocab_size":1,"dtype":"bfloat16","hybrid_override_pattern":"M-M*",
        "mamba_num_heads":128,"mamba_head_dim":80,"ssm_state_size":128,"n_groups":8,"conv_kernel":4}"#;
    let layout =
        KvLayout::new(&Architecture::from_json("c", nemotron).unwrap(), &KvOptions::default()).unwrap();
    assert_eq!(layout.block_size, 672, "vllm#24280");
    let kda = r#"{"num_hidden_layers":4,"hidden_size":2048,"num_attention_heads":32,"head_dim":128,"kv_lora_rank":512,
        "qk_rope_head_dim":64,"intermediate_size":5120,"vocab_size":1,"dtype":"bfloat16","layer_group_size":4,
        "short_conv_kernel_size":4}"#;
    let layout = KvLayout::new(&Architecture::from_json("c", kda).unwrap(), &KvOptions::default()).unwrap();
    assert_eq!((layout.state_bytes, layout.block_size), (2_170_880, 1_920));
}

/// club-3090#1047: 48 value heads, an 8-bit cache, "block size to 1568", "padding by 0.13 %".
#[test]
fn the_block_of_a_hybrid_with_a_small_cache() {
    let text = r#"{"num_hidden_layers":4,"hidden_size":5120,"num_attention_heads":24,"num_key_value_heads":4,"head_dim":256,
        "intermediate_size":17408,"vocab_size":1,"dtype":"bfloat16","full_attention_interval":4,
        "linear_num_key_heads":16,"linear_num_value_heads":48,"linear_key_head_dim":128,"linear_value_head_dim":128,
        "mamba_ssm_dtype":"float32"}"#;
    let options = KvOptions { kv_cache_dtype: KvDtype::Fp8, ..KvOptions::default() };
    let layout = KvLayout::new(&Architecture::from_json("c", text).unwrap(), &options).unwrap();
    assert_eq!(layout.block_size, 1_568);
    let padding = (layout.block_size * 2048) as f64 / layout.state_bytes as f64 - 1.0;
    assert!((padding - 0.0013).abs() < 5e-5, "{padding}");
}

/// GLM-5.1 on eight GPUs: sparse attention keeps an index beside packed latent vectors.
#[test]
fn sparse_attention_keeps_an_index() {
    let text = r#"{"model_type":"glm_moe_dsa","num_hidden_layers":78,"hidden_size":6144,"num_attention_heads":64,
        "kv_lora_rank":512,"q_lora_rank":2048,"qk_rope_head_dim":64,"qk_nope_head_dim":192,"v_head_dim":256,
        "index_topk":2048,"index_head_dim":128,"index_n_heads":32,"intermediate_size":12288,"vocab_size":154880,
        "dtype":"bfloat16"}"#;
    let model = Architecture::from_json("c", text).unwrap();
    let options = KvOptions { tensor_parallel_size: 8, kv_cache_dtype: KvDtype::Fp8, ..KvOptions::default() };
    let layout = KvLayout::new(&model, &options).unwrap();
    assert_eq!((layout.token_bytes, layout.block_size), (78 * (656 + 132), 64));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "19.55 GiB")]
    let capacity = layout.capacity((19.55 * GIB as f64) as u64, 202_752);
    assert_eq!(capacity.tokens_before_0_21, 341_504);
}

fn layers(extra: &str) -> String {
    format!(
        r#"{{"num_hidden_layers":8,"hidden_size":1024,"num_attention_heads":16,"num_key_value_heads":4,"head_dim":64,
        "intermediate_size":4096,"vocab_size":1000,"dtype":"bfloat16"{extra}}}"#
    )
}

fn small(extra: &str, options: &KvOptions) -> KvLayout {
    KvLayout::new(&Architecture::from_json("c", &layers(extra)).unwrap(), options).unwrap()
}

/// One token in one layer of the small model: 2 x 4 heads x 64 x 2 bytes.
const SMALL: u64 = 1024;

#[test]
fn kinds_of_attention_and_what_they_keep() {
    let plain = KvOptions::default();
    for (extra, layers) in [
        ("", 8),
        (r#","num_kv_shared_layers":3"#, 5),
        (r#","use_cla":true,"cla_share_factor":2"#, 4),
        (
            r#","block_configs":[{"attention":{"no_op":true},"ffn":{}},{"attention":{"n_heads_in_group":4},"ffn":{}},
            {"attention":{"n_heads_in_group":4},"ffn":{}},{"attention":{"n_heads_in_group":4},"ffn":{}},
            {"attention":{"n_heads_in_group":4},"ffn":{}},{"attention":{"n_heads_in_group":4},"ffn":{}},
            {"attention":{"n_heads_in_group":4},"ffn":{}},{"attention":{"replace_with_linear":true},"ffn":{}}]"#,
            6,
        ),
    ] {
        assert_eq!(small(extra, &plain).token_bytes, layers * SMALL, "{extra}");
    }
    assert_eq!(
        small(r#","num_key_value_heads":null"#, &plain).token_bytes,
        4 * 8 * SMALL,
        "as many as queries"
    );
    // A request of 20,000 tokens in windows of 1,024: window and step, a block more; chunks need no block more.
    let sliding = small(r#","sliding_window":1024"#, &plain);
    assert_eq!(
        (sliding.groups.len(), sliding.blocks_per_request(20_000)),
        (1, (1023 + 8192_u64).div_ceil(16) + 1)
    );
    let chunked = small(r#","attention_chunk_size":1024"#, &plain);
    assert_eq!(chunked.groups.len(), 4);
    assert_eq!(chunked.blocks_per_request(20_000), 1250 + 3 * (1024 + 8192_u64).div_ceil(16));
    let unused = small(r#","sliding_window":1024,"use_sliding_window":false"#, &plain);
    assert_eq!(unused.blocks_per_request(20_000), 1250);
    // Wider heads in global layers: their blocks hold fewer or more tokens, so that pages are equal.
    let mixed = small(
        r#","sliding_window":64,"sliding_window_pattern":4,"global_head_dim":128,"num_global_key_value_heads":1"#,
        &plain,
    );
    assert_eq!(mixed.groups.iter().map(|g| g.block_tokens).max(), Some(32));
}

#[test]
fn ranks_share_heads_and_formats_shrink_them() {
    for (tp, share) in [(1, 1), (2, 2), (4, 4), (8, 4), (16, 4)] {
        let options = KvOptions { tensor_parallel_size: tp, ..KvOptions::default() };
        assert_eq!(small("", &options).token_bytes, 8 * SMALL / share, "{tp}");
    }
    for (dtype, bytes) in [("fp8", 512), ("fp8_per_token_head", 512 + 2 * 4 * 4), ("nvfp4", 2 * 4 * 36)] {
        let options = KvOptions { kv_cache_dtype: KvDtype::parse(dtype).unwrap(), ..KvOptions::default() };
        assert_eq!(small("", &options).token_bytes, 8 * bytes, "{dtype}");
    }
    // What the checkpoint asks for, unless told otherwise.
    let scheme = r#","quantization_config":{"quant_method":"modelopt","quant_algo":"FP8","kv_cache_quant_algo":"FP8"}"#;
    assert_eq!(small(scheme, &KvOptions::default()).token_bytes, 8 * 512);
    let told = KvOptions { kv_cache_dtype: KvDtype::Bfloat16, ..KvOptions::default() };
    assert_eq!(small(scheme, &told).token_bytes, 8 * SMALL);
}

#[test]
fn configs_without_sense_are_refused_by_field() {
    for (extra, field) in [
        (r#","num_key_value_heads":17"#, "num_key_value_heads"),
        (r#","num_hidden_layers":0"#, "num_hidden_layers"),
        (r#","num_hidden_layers":-1"#, "num_hidden_layers"),
        (r#","num_hidden_layers":"8""#, "num_hidden_layers"),
        (r#","hidden_size":null"#, "hidden_size"),
        (r#","head_dim":null,"num_attention_heads":12"#, "head_dim"),
        (r#","dtype":"int3""#, "dtype"),
        (r#","kv_lora_rank":512"#, "qk_rope_head_dim"),
        (r#","layer_types":["full_attention"]"#, "layer_types"),
        (r#","compress_ratios":[4]"#, "compress_ratios"),
        (r#","quantization_config":{"quant_method":"tangled"}"#, "quant_method"),
    ] {
        let error = Architecture::from_json("c.json", &layers(extra)).unwrap_err().to_string();
        assert!(error.contains("c.json") && error.contains(field), "{extra}: {error}");
    }
    assert!(Architecture::from_json("c.json", "{\n\"a\": }").unwrap_err().to_string().contains("c.json:2"));
    assert!(Architecture::from_json("c.json", "[]").is_err());
}

proptest! {
    #[test]
    fn capacity_obeys_its_laws(
        layers in 1_u64..40, heads_log in 0_u32..4, window in prop::option::of(1_u64..5000), pattern in 1_u64..7,
        gib in 1_u64..100, length in 1_u64..300_000, tp_log in 0_u32..3,
    ) {
        let sliding = window.map_or(String::new(), |w| format!(r#","sliding_window":{w},"sliding_window_pattern":{pattern}"#));
        let text = format!(
            r#"{{"num_hidden_layers":{layers},"hidden_size":1024,"num_attention_heads":8,"num_key_value_heads":{},
            "head_dim":64,"intermediate_size":1,"vocab_size":1,"dtype":"bfloat16"{sliding}}}"#, 1 << heads_log);
        let model = Architecture::from_json("c", &text).unwrap();
        let options = KvOptions { tensor_parallel_size: 1 << tp_log, ..KvOptions::default() };
        let layout = KvLayout::new(&model, &options).unwrap();
        let capacity = layout.capacity(gib * GIB, length);
        // Blocks fit, and one more would not.
        prop_assert!(capacity.num_blocks * layout.block_bytes <= gib * GIB);
        prop_assert!((capacity.num_blocks + 1) * layout.block_bytes > gib * GIB);
        // Longer requests never need less; the longest that fits, fits, and the next does not.
        prop_assert!(layout.blocks_per_request(length) <= layout.blocks_per_request(length + 1));
        let longest = layout.longest_request(gib * GIB, length);
        prop_assert!(layout.blocks_per_request(longest) <= capacity.num_blocks || longest == 0);
        prop_assert!(longest == length || layout.blocks_per_request(longest + 1) > capacity.num_blocks);
        // With windows treated as full there is one group, and a block is sixteen tokens of every layer.
        let all_full = KvOptions { disable_hybrid_kv_cache_manager: true, ..options };
        let full = KvLayout::new(&model, &all_full).unwrap();
        prop_assert_eq!(full.groups.len(), 1);
        prop_assert_eq!(full.token_bytes, layout.token_bytes);
        prop_assert_eq!(full.block_bytes, 16 * full.token_bytes);
    }
}

/// Capacity of a hybrid is two numbers; the token figure changes with the length though nothing is stored otherwise.
#[test]
fn hybrids_take_bytes_per_request_and_bytes_per_token() {
    let text = r#"{"num_hidden_layers":24,"hidden_size":2048,"num_attention_heads":8,"num_key_value_heads":2,
        "head_dim":256,"intermediate_size":6144,"vocab_size":1,"dtype":"bfloat16","full_attention_interval":4,
        "linear_num_key_heads":16,"linear_num_value_heads":16,"linear_key_head_dim":128,"linear_value_head_dim":128,
        "mamba_ssm_dtype":"float32"}"#;
    let model = Architecture::from_json("c", text).unwrap();
    let layout =
        KvLayout::new(&model, &KvOptions { mamba_cache_mode: StateMode::None, ..KvOptions::default() })
            .unwrap();
    let (short, long) = (layout.capacity(6 * GIB, 1_024), layout.capacity(6 * GIB, 262_144));
    assert_eq!(short.num_blocks, long.num_blocks);
    assert!(2 * short.tokens < long.tokens, "{} {}", short.tokens, long.tokens);
    assert!((layout.bytes_per_further_token() - 6.0 * 2048.0).abs() < 1e-9);
    let states = layout.bytes_besides_tokens(544 * 100) / layout.block_bytes as f64;
    assert!((states - 3.0).abs() < 1e-9, "three groups of six states: {states}");
}
