// Evaluations: models answer rows, graders score the answers. What the rest of the service may import.
export type { Evaluations } from './service.ts'
export { type EvaluationRow as EndedEvaluation, isActive } from './store.ts'
