// What a trainer reports of a finished training.
import { z } from 'zod'
import { RolloutFigures, RolloutGroup } from '../../../contract/job-history.ts'
import { TrainedWith } from '../../../contract/models.ts'
import { Artifact } from '../models/index.ts'

export const Result = Artifact.extend({
  validation_exact: z.number().nullable(),
  /** Checkpoints that become models besides the result. */
  kept: z.array(Artifact),
  trained_with: TrainedWith.nullish(),
  /** Path of the row losses file. */
  rows: z.string().nullable(),
  /** Path of the file that the engine drafts answers from. */
  drafts: z.string().nullish(),
  drafts_sha256: z.string().nullish(),
  epochs: z.int(),
  steps_total: z.int(),
  train_loss: z.number(),
  trained_tokens: z.int(),
  train_seconds: z.number(),
  tokens_per_second: z.number(),
  steps: z.int(),
  peak_memory_mb: z.number(),
  predicted_memory_mb: z.number(),
  predicted_seconds: z.number().nullable(),
})
export type Result = z.infer<typeof Result>

/** The rows that a trainer held out of the dataset, counted from 1. */
export const HeldOut = z.object({ rows: z.array(z.int().min(1)) })

/** The answers of a step that are kept: those that were learned from, or those to held-out prompts after it. */
export const KeptRollouts = z.object({
  step: z.int().min(0),
  split: z.enum(['training', 'validation']),
  figures: RolloutFigures,
  groups: z.array(RolloutGroup.omit({ line: true, messages: true })),
})
export type KeptRollouts = z.infer<typeof KeptRollouts>
