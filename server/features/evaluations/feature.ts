import type { Limits } from '../../platform/limits/index.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Files } from '../files/index.ts'
import type { Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { StoredCompletions } from '../stored-completions/index.ts'
import { openaiEvalRoutes } from './openai/routes.ts'
import { createOpenaiEvals } from './openai/service.ts'
import { evaluationRoutes } from './routes.ts'
import { createEvaluations, type Evaluations, type OnEnded, queueKind } from './service.ts'
import { workOnEvaluation } from './work.ts'

export { evaluationNeedsModel, evaluationNeedsSource } from './store.ts'

interface Needs {
  accounts: Accounts
  limits: Limits
  datasets: Datasets
  files: Files
  models: TunedModels
  inference: Inference
  storedCompletions: StoredCompletions
  onEnded: OnEnded
}

export function createEvaluationsFeature(context: Context, needs: Needs): Feature & { evaluations: Evaluations } {
  const evaluations = createEvaluations({ ...context, ...needs, max_waiting: context.config.max_waiting_jobs })
  const work = { ...context, ...needs, evaluations }
  return {
    evaluations,
    mount(app) {
      evaluationRoutes(app, evaluations)
      openaiEvalRoutes(app, createOpenaiEvals({ ...context, ...needs, evaluations }))
    },
    start: async () => [
      startWorker({
        ...context,
        kind: queueKind,
        handle: (claim, signal, turn) => workOnEvaluation({ ...work, turn }, claim, signal),
      }),
    ],
  }
}
