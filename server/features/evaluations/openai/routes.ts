import type { FastifyInstance } from 'fastify'
import {
  cancelRun,
  createEval,
  createRun,
  deleteEval,
  deleteRun,
  getEval,
  getOutputItem,
  getRun,
  listEvals,
  listOutputItems,
  listRuns,
  updateEval,
} from '../../../../contract/openai-evals.ts'
import { mount } from '../../../platform/http/mount.ts'
import type { OpenaiEvals } from './service.ts'

export function openaiEvalRoutes(app: FastifyInstance, evals: OpenaiEvals): void {
  mount(app, createEval, ({ caller, body }) => evals.create(caller, body))
  mount(app, listEvals, ({ caller, query }) => evals.list(caller.account_id, query))
  mount(app, getEval, ({ caller, params }) => evals.get(caller.account_id, params.eval_id))
  mount(app, updateEval, ({ caller, params, body }) => evals.update(caller, params.eval_id, body))
  mount(app, deleteEval, ({ caller, params }) => evals.delete(caller, params.eval_id))
  mount(app, createRun, ({ caller, params, body }) => evals.createRun(caller, params.eval_id, body))
  mount(app, listRuns, ({ caller, params, query }) => evals.runs(caller.account_id, params.eval_id, query))
  mount(app, getRun, ({ caller, params }) => evals.run(caller.account_id, params.eval_id, params.run_id))
  mount(app, cancelRun, ({ caller, params }) => evals.cancelRun(caller, params.eval_id, params.run_id))
  mount(app, deleteRun, ({ caller, params }) => evals.deleteRun(caller, params.eval_id, params.run_id))
  mount(app, listOutputItems, ({ caller, params, query }) =>
    evals.outputItems(caller.account_id, params.eval_id, params.run_id, query),
  )
  mount(app, getOutputItem, ({ caller, params }) =>
    evals.outputItem(caller.account_id, params.eval_id, params.run_id, params.output_item_id),
  )
}
