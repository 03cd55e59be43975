"""What headwise shows: tables, attention maps on paper, screen and terminal, and the self-contained page."""
