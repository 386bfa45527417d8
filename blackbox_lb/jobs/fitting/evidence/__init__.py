"""What a bias is learned from: samples, given answers, an opening, or prompts without an answer."""
