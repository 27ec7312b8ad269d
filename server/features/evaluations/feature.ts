import type { Limits } from '../../platform/limits/index.ts'
import type { Endpoints } from '../../platform/outbound/signed-post.ts'
import { startWorker } from '../../platform/queue/worker.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Datasets } from '../datasets/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Files } from '../files/index.ts'
import type { Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { StoredCompletions } from '../stored-completions/index.ts'
import { queueKind } from './creation.ts'
import { createPythonGraders } from './graders/python/pool.ts'
import { Grading } from './grading.ts'
import { openaiGraderRoutes } from './openai/graders.ts'
import { openaiEvalRoutes } from './openai/routes.ts'
import { OpenaiEvals } from './openai/service.ts'
import { evaluationRoutes } from './routes.ts'
import { Evaluations, type OnEnded } from './service.ts'
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
  endpoints: Endpoints
  onEnded: OnEnded
}

export function createEvaluationsFeature(
  { config, db, queue, dataDir, min_free_mb, quota, stopping, log, now }: Context,
  { accounts, limits, datasets, files, models, inference, storedCompletions, endpoints, onEnded }: Needs,
): Feature & { evaluations: Evaluations } {
  const { max_waiting_jobs: max_waiting } = config
  const python = createPythonGraders({ processes: config.python_graders })
  const grading = new Grading({ inference, accounts, limits, python, endpoints, log, now })
  const evaluations = new Evaluations({
    db,
    queue,
    datasets,
    files,
    models,
    inference,
    dataDir,
    min_free_mb,
    quota,
    max_waiting,
    onEnded,
    grading,
    python,
    endpoints,
    now,
  })
  const openaiEvals = new OpenaiEvals({ db, evaluations, files, storedCompletions, dataDir, min_free_mb, quota, now })
  const work = {
    db,
    queue,
    datasets,
    files,
    models,
    inference,
    accounts,
    limits,
    evaluations,
    grading,
    quota,
    dataDir,
    min_free_mb,
    log,
    now,
  }
  return {
    evaluations,
    mount(app) {
      evaluationRoutes(app, evaluations)
      openaiEvalRoutes(app, openaiEvals)
      openaiGraderRoutes(app, evaluations, endpoints, stopping)
    },
    start: async () => [
      { close: async () => python.close() },
      startWorker({
        queue,
        kind: queueKind,
        log,
        handle: (claim, stopping, turn) => workOnEvaluation(work, claim, stopping, turn),
      }),
    ],
  }
}
