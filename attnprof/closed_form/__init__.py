"""Reports from closed forms: costs by stage, comparisons, heads and their optimum, heatmaps."""
