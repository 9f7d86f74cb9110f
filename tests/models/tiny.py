"""Sizes of small models of transformers, which tests of several types share."""

SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {**SIZES, **TOKENS}
#: Fields of experts beside their number, and of latent attention.
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip
