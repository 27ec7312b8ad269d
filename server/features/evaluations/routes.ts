import type { FastifyInstance } from 'fastify'
import {
  cancelEvaluation,
  createEvaluation,
  deleteEvaluation,
  getEvaluation,
  listEvaluationRows,
  listEvaluationRuns,
} from '../../../contract/evaluations.ts'
import { mount } from '../../platform/http/mount.ts'
import type { Evaluations } from './service.ts'

export function evaluationRoutes(app: FastifyInstance, evaluations: Evaluations): void {
  mount(app, createEvaluation, ({ caller, body }) => evaluations.create(caller, body))
  mount(app, listEvaluationRuns, ({ caller, query }) => evaluations.list(caller.account_id, query))
  mount(app, getEvaluation, ({ caller, params }) => evaluations.get(caller.account_id, params.evaluation_id))
  mount(app, listEvaluationRows, ({ caller, params, query }) =>
    evaluations.rows(caller.account_id, params.evaluation_id, query),
  )
  mount(app, cancelEvaluation, ({ caller, params }) => evaluations.cancel(caller, params.evaluation_id))
  mount(app, deleteEvaluation, ({ caller, params }) => evaluations.delete(caller, params.evaluation_id))
}
