//! KV capacity from `config.json`: the values of public bug reports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inferometer::estimate::{Architecture, KvDtype, KvLayout, KvOptions, StateMode};

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
