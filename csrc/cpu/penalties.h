// Penalties on the tokens that a request has seen. Included inside the level's namespace.

inline void apply_penalties(float* logits, const PenalisedRow* rows, const float* penalties, int64_t num_rows,
                            int64_t vocab_size) {
  pool().run(num_rows, [&](int64_t index) {
    const PenalisedRow& seen = rows[index];
    const float repetition = penalties[3 * index], frequency = penalties[3 * index + 1],
                presence = penalties[3 * index + 2];
    float* logits_row = logits + seen.row * vocab_size;
    for (int64_t slot = 0; slot < seen.num_tokens; ++slot) {
      float logit = logits_row[seen.token_ids[slot]];
      logit = logit > 0 ? logit / repetition : logit * repetition;
      logit -= frequency * seen.counts[slot];
      if (seen.counts[slot] > 0) logit -= presence;
      logits_row[seen.token_ids[slot]] = logit;
    }
  });
}
