//! Which kind of layer stands where: the many ways in which configs say it.
//!
//! Knows the layer patterns of model families. Knows no sizes except windows.

use serde_json::Value;

use super::arch::Window;
use super::config::Config;
use crate::error::Result;

/// The kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerKind {
    /// Attention (softmax or latent).
    Attention(Window),
    /// A recurrent state.
    State,
    /// A short convolution.
    Conv,
    /// Attention and a state side by side.
    Both(Window),
    /// Experts alone.
    Experts,
    /// A feed-forward network alone.
    FeedForward,
    /// Nothing that the cache knows.
    Nothing,
}

/// The kinds of the model's `count` layers.
pub(super) fn kinds(config: &Config<'_>, count: u64, notes: &mut Vec<String>) -> Result<Vec<LayerKind>> {
    let indices = 0..count;
    if let Some(text) = config.text(&["hybrid_override_pattern"]) {
        return from_letters(config, text, count);
    }
    if let Some(list) = config.list(&["layer_types", "layers_block_type", "block_types"]) {
        return from_names(config, list, count);
    }
    if let Some(state) = recurrent_layers(config, count)? {
        let window = Window::Full;
        return Ok(indices
            .map(|i| if state(i) { LayerKind::State } else { LayerKind::Attention(window) })
            .collect());
    }
    if config.model_type() == "falcon_h1" {
        return Ok(indices.map(|_| LayerKind::Both(Window::Full)).collect());
    }
    let window = windows(config, notes)?;
    Ok(indices.map(|i| LayerKind::Attention(window(i, count))).collect())
}

/// A pattern of letters, one a layer: `M` state, `*` attention, `-` feed-forward, `E` experts.
fn from_letters(config: &Config<'_>, text: &str, count: u64) -> Result<Vec<LayerKind>> {
    let kinds: Vec<LayerKind> = text
        .chars()
        .filter(|c| *c != '|')
        .map(|c| match c {
            'M' => Ok(LayerKind::State),
            '*' => Ok(LayerKind::Attention(Window::Full)),
            '-' => Ok(LayerKind::FeedForward),
            'E' => Ok(LayerKind::Experts),
            other => Err(config.wrong(
                "hybrid_override_pattern",
                format!("{other:?} is none of M (state), * (attention), - (feed-forward), E (experts)"),
            )),
        })
        .collect::<Result<_>>()?;
    if kinds.len() as u64 == count {
        Ok(kinds)
    } else {
        Err(config.wrong(
            "hybrid_override_pattern",
            format!("{} letters for {count} layers (num_hidden_layers)", kinds.len()),
        ))
    }
}

/// A list of names, one a layer; entries beyond the last layer belong to prediction layers.
fn from_names(config: &Config<'_>, list: &[Value], count: u64) -> Result<Vec<LayerKind>> {
    if (list.len() as u64) < count {
        let message = format!("{} entries for {count} layers (num_hidden_layers)", list.len());
        return Err(config.wrong("layer_types", message));
    }
    let off = window_is_off(config);
    let sliding = || -> Result<Window> {
        if off {
            return Ok(Window::Full);
        }
        // Cohere's layers see the position itself besides the window.
        let extra = u64::from(config.model_type().starts_with("cohere2"));
        Ok(Window::Sliding(config.need(WINDOW_KEYS)? + extra))
    };
    list.iter()
        .take(usize::try_from(count).unwrap_or(usize::MAX))
        .map(|entry| {
            Ok(match entry.as_str().unwrap_or_default() {
                "full_attention"
                | "attention"
                | "full"
                | "global"
                | "global_attention"
                | "deepseek_sparse_attention"
                | "mla" => LayerKind::Attention(Window::Full),
                "sliding_attention" | "sliding" | "sliding_window" | "local" | "local_attention" => {
                    LayerKind::Attention(sliding()?)
                }
                "chunked_attention" => {
                    LayerKind::Attention(Window::Chunked(config.need(&["attention_chunk_size"])?))
                }
                "linear_attention" | "mamba" | "mamba2" | "kda" | "recurrent" | "gdn" => LayerKind::State,
                "conv" | "short_conv" => LayerKind::Conv,
                "hybrid" => LayerKind::Both(Window::Full),
                "moe" | "experts" => LayerKind::Experts,
                "mlp" | "feed_forward" => LayerKind::FeedForward,
                "no_op" | "identity" => LayerKind::Nothing,
                _ => return Err(config.wrong("layer_types", format!("layers of kind {entry} are not known"))),
            })
        })
        .collect()
}

/// Whether the layer of that index is recurrent.
type IsState = Box<dyn Fn(u64) -> bool>;

/// Which layers of a model without a list are recurrent; `None` if none is.
fn recurrent_layers(config: &Config<'_>, count: u64) -> Result<Option<IsState>> {
    if let Some(linear) = config.part("linear_attn_config") {
        // Numbered from one.
        let Some(list) = linear.list(&["kda_layers"]) else { return Ok(None) };
        let layers: Vec<u64> = list.iter().filter_map(Value::as_u64).collect();
        return Ok(Some(Box::new(move |i| layers.contains(&(i + 1)))));
    }
    if let Some(list) = config.list(&["attn_type_list"]) {
        let types: Vec<u64> = list.iter().filter_map(Value::as_u64).collect();
        return Ok(Some(Box::new(move |i| usize::try_from(i).ok().and_then(|i| types.get(i)) == Some(&0))));
    }
    if let Some(list) = config.list(&["attn_layer_indices"]) {
        let attention: Vec<u64> = list.iter().filter_map(Value::as_u64).collect();
        return Ok(Some(Box::new(move |i| !attention.contains(&i))));
    }
    if let Some(period) = config.int(&["attn_layer_period"])?.filter(|p| *p > 0) {
        let offset = config.int(&["attn_layer_offset"])?.unwrap_or(0);
        return Ok(Some(Box::new(move |i| i % period != offset)));
    }
    let has_state = config.get(&["linear_num_value_heads"]).is_some();
    if has_state {
        // Qwen3-Next's own default.
        let interval = config.int(&["full_attention_interval"])?.filter(|p| *p > 0).unwrap_or(4);
        return Ok(Some(Box::new(move |i| (i + 1) % interval != 0)));
    }
    if let Some(group) = config.int(&["layer_group_size"])?.filter(|g| *g > 1) {
        let complete = count / group * group;
        return Ok(Some(Box::new(move |i| (i + 1) % group != 0 && i < complete)));
    }
    let pure = matches!(config.model_type().as_str(), "mamba" | "mamba2" | "falcon_mamba");
    Ok(if pure { Some(Box::new(|_| true)) } else { None })
}

/// The names of the window.
const WINDOW_KEYS: &[&str] = &["sliding_window", "sliding_window_size", "interleaved_sliding_window"];

/// Whether the config says that its window is not used.
fn window_is_off(config: &Config<'_>) -> bool {
    config.get(&["use_sliding_window"]).and_then(Value::as_bool) == Some(false)
}

type WindowOf = Box<dyn Fn(u64, u64) -> Window>;

/// The window of layer `i` of `count` where no list gives it.
fn windows(config: &Config<'_>, notes: &mut Vec<String>) -> Result<WindowOf> {
    let family = config.model_type();
    if let Some(chunk) = config.int(&["attention_chunk_size"])?.filter(|c| *c > 0) {
        let global: Vec<u64> = config
            .list(&["no_rope_layers"])
            .map(|l| l.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default();
        let interval = config.int(&["no_rope_layer_interval"])?.unwrap_or(4).max(1);
        return Ok(Box::new(move |i, _| {
            let rope = usize::try_from(i).ok().and_then(|i| global.get(i).copied());
            let is_local = rope.map_or((i + 1) % interval != 0, |r| r != 0);
            if is_local { Window::Chunked(chunk) } else { Window::Full }
        }));
    }
    let window = config.int(WINDOW_KEYS)?.filter(|w| *w > 0);
    let Some(window) = window.filter(|_| !window_is_off(config)) else {
        return Ok(Box::new(|_, _| Window::Full));
    };
    let extra = u64::from(family.starts_with("cohere2"));
    let pick = move |full: bool| if full { Window::Full } else { Window::Sliding(window + extra) };
    if let Some(list) = config.list(&["hybrid_layer_pattern"]) {
        let local: Vec<u64> = list.iter().filter_map(Value::as_u64).collect();
        return Ok(Box::new(move |i, _| {
            pick(usize::try_from(i).ok().and_then(|i| local.get(i)).copied().unwrap_or(0) == 0)
        }));
    }
    let pattern = config.get(&["sliding_window_pattern", "_sliding_window_pattern"]);
    if let Some(letters) = pattern.and_then(Value::as_str) {
        let letters: Vec<char> = letters.to_uppercase().chars().collect();
        if letters.is_empty() || letters.iter().any(|c| !matches!(c, 'L' | 'G')) {
            return Err(
                config.wrong("sliding_window_pattern", "a text of L (local) and G (global) is expected")
            );
        }
        // The last layer is global whatever the pattern says.
        return Ok(Box::new(move |i, count| {
            let at = usize::try_from(i).unwrap_or(0) % letters.len();
            pick(letters[at] == 'G' || i + 1 == count)
        }));
    }
    let given = pattern.map(|v| config.as_int("sliding_window_pattern", v)).transpose()?.filter(|p| *p > 0);
    let family_default = match family.as_str() {
        f if f.starts_with("gemma2") || f.starts_with("gpt_oss") => Some(2),
        f if f.starts_with("gemma3n") => Some(5),
        f if f.starts_with("gemma3") || f.starts_with("gemma4") => Some(6),
        f if f.starts_with("cohere2") || f.starts_with("olmo3") || f.starts_with("exaone4") => Some(4),
        _ => None,
    };
    if let Some(period) = given.or(family_default) {
        if given.is_none() {
            notes.push(format!("no window pattern: every {period}th layer sees all, as {family} does"));
        }
        return Ok(Box::new(move |i, _| pick((i + 1) % period == 0)));
    }
    if let Some(first) = config.int(&["max_window_layers"])? {
        return Ok(Box::new(move |i, _| pick(i < first)));
    }
    Ok(Box::new(move |_, _| pick(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &Value) -> Result<Vec<LayerKind>> {
        let config = Config::new("c", value).unwrap();
        let count = config.need(&["num_hidden_layers"])?;
        kinds(&config, count, &mut Vec::new())
    }

    fn full_layers(value: &Value) -> Vec<usize> {
        let kinds = of(value).unwrap();
        (0..kinds.len()).filter(|i| kinds[*i] == LayerKind::Attention(Window::Full)).collect()
    }

    #[test]
    fn every_way_to_say_a_pattern() {
        let j = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":12,"sliding_window":8,"sliding_window_pattern":6}"#)),
            [5, 11]
        );
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":5,"sliding_window":8,"sliding_window_pattern":"LLLG"}"#)),
            [3, 4]
        );
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":4,"model_type":"gemma2","sliding_window":8}"#)),
            [1, 3]
        );
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":4,"sliding_window":8,"max_window_layers":3}"#)),
            [0, 1, 2]
        );
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":2,"sliding_window":8,"use_sliding_window":false}"#)),
            [0, 1]
        );
        assert_eq!(full_layers(&j(r#"{"num_hidden_layers":2,"sliding_window":8}"#)), [0; 0]);
        assert_eq!(full_layers(&j(r#"{"num_hidden_layers":8,"attention_chunk_size":8192}"#)), [3, 7]);
        assert_eq!(
            full_layers(&j(
                r#"{"num_hidden_layers":4,"linear_attn_config":{"kda_layers":[1,2,3],"full_attn_layers":[4]}}"#
            )),
            [3]
        );
        assert_eq!(
            full_layers(&j(r#"{"num_hidden_layers":8,"attn_layer_period":8,"attn_layer_offset":4}"#)),
            [4]
        );
        assert_eq!(full_layers(&j(r#"{"num_hidden_layers":7,"layer_group_size":3}"#)), [2, 5, 6]);
        assert_eq!(full_layers(&j(r#"{"num_hidden_layers":4,"hybrid_override_pattern":"M-*E"}"#)), [2]);
        assert_eq!(
            full_layers(&j(
                r#"{"num_hidden_layers":8,"full_attention_interval":4,"linear_num_value_heads":2}"#
            )),
            [3, 7]
        );
    }

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        for text in [
            r#"{"num_hidden_layers":3,"layer_types":["full_attention"]}"#,
            r#"{"num_hidden_layers":1,"layer_types":["astrology"]}"#,
            r#"{"num_hidden_layers":1,"layer_types":["sliding_attention"]}"#,
            r#"{"num_hidden_layers":3,"hybrid_override_pattern":"M*"}"#,
        ] {
            assert!(of(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
    }
}
