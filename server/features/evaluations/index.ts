// Evaluations: models answer rows, graders score the answers. What the rest of the service may import.
//
// Other features grade by `evaluations.grading`:
//
//   await evaluations.creation.checkGraders(account_id, graders, 'graders')    when they are given: throws ApiError
//   const run = evaluations.grading.open({ account_id, key_id, id, graders, limits })
//   const graded = await run.gradeSamples([{ item, sample: sampleOf(text) }], { signal })
//   run.report()                                                 score, errors and latency per grader; cost of judges
//   await run.close()
//
// `graded[i].score` is null where a grader failed, and `graded[i].error` says why: that is no score of 0.
// GradingStopped ends the run with a sentence for its user.
export { type Graded, isScore, outOfBounds } from './graders/grade.ts'
export { GraderError, GradingStopped, type Values as GraderValues } from './graders/template.ts'
export { DayUsedUp, type GradingReport, type GradingRun, type GradingSoFar, sampleOf } from './grading.ts'
export { type EvaluationItem, readItems, requestOf } from './items.ts'
export type { Evaluations } from './service.ts'
export { type EvaluationRow as EndedEvaluation, isActive } from './store.ts'
