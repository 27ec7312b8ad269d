/**
 * The name of a tuned model in OpenAI's API: `ft:BASE:ACCOUNT:SUFFIX:ID`, for a checkpoint with `:ckpt-step-N` at its
 * end. It never changes.
 */
export const ftName = (model: {
  base_model_id: string
  account_id: string
  model_id: string
  suffix?: string | undefined
  /** Set for a checkpoint that is not the result. */
  step?: number | undefined
}): string =>
  ['ft', model.base_model_id, model.account_id, model.suffix ?? '', model.model_id].join(':') +
  (model.step === undefined ? '' : `:ckpt-step-${model.step}`)
