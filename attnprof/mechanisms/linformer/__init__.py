"""Linformer: keys and values compressed along the tokens by learned maps."""
