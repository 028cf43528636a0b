"""Sizes of the built-in model, as config.json has them."""

import checkpoint
import hashing

SEED = 20261


def config(tok):
    """config.json for a tokenizer."""
    of, count = hashing.classes(tok)
    last = tok.token_to_id("<|noise|>")
    text = {
        "model_type": "deepseek_v41_text", "vocab_size": tok.get_vocab_size(), "hidden_size": 128, "num_hidden_layers": 6,
        "moe_intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 16,
        "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20,
        "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
        "tie_word_embeddings": False, "max_position_embeddings": 131072, "rope_theta": 10000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 8192},
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": 32,
        "compress_ratios": [0, 0, 2, 1, 1, 1, 0, 0, 0], "compress_rope_theta": 160000,
        "kv_source_layer_ids": [2, 3], "index_source_layer_ids": [2, 3, 5], "index_n_heads": 4, "index_head_dim": 32,
        "index_topk": 128, "candidate_source_layer_id": 3, "candidate_topk_blocks": 64, "candidate_block_size": 8,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
        "engram_layer_ids": [1, 2], "engram_num_embeddings": [], "engram_max_ngram_size": 4, "engram_vocab_size": 499,
        "engram_n_heads": 2, "engram_head_dim": 16, "engram_pad_token_id": 2, "engram_compressed_vocab_size": count,
        "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": last,
        "dspark_target_layer_ids": [3, 4, 5], "dspark_markov_rank": 32, "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2,
    }
    text["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in checkpoint.engram_rows(text)]
    vision = {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128,
        "patch_size": 14, "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 64, "min_pixels": 7056, "max_wh_ratio": None,
    }
    raw = {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16", "bos_token_id": 0,
        "eos_token_id": 1, "pad_token_id": 2, "image_token_id": tok.token_to_id("<|image|>"), "text_config": text, "vision_config": vision,
    }
    return raw, of


SPAN = 8  # rows of an 84 x 84 image: start, two lines of two and a newline, end
