"""Where two costs meet: by formulas, by code that runs, by predicted and measured times."""
