import type { FastifyInstance } from 'fastify'
import {
  cancelJob,
  changeJob,
  createJob,
  deleteJob,
  estimateJob,
  getJob,
  jobEvents,
  listJobs,
  pauseJob,
  resumeJob,
} from '../../../contract/fine-tuning.ts'
import { listCheckpoints, listEvaluations, listHeldOutRows, listJobRows } from '../../../contract/job-history.ts'
import {
  AdapterFields,
  changeTunedModel,
  deleteTunedModel,
  getTunedModel,
  listTunedModels,
  uploadAdapter,
} from '../../../contract/models.ts'
import { mount } from '../../platform/http/mount.ts'
import { readMultipart } from '../../platform/http/multipart.ts'
import { sendEvents } from '../../platform/http/ndjson-response.ts'
import { presence } from '../../platform/http/presence.ts'
import type { TunedModels } from './models/registry.ts'
import type { FineTuning } from './service.ts'

export function fineTuningRoutes(
  app: FastifyInstance,
  fineTuning: FineTuning,
  models: TunedModels,
  stopping: AbortSignal,
): void {
  mount(app, createJob, ({ caller, body, request }) =>
    fineTuning.create(caller, { ...body, traceparent: request.span?.headers().traceparent }),
  )
  mount(app, estimateJob, ({ caller, body, reply }) =>
    fineTuning.estimate(caller.account_id, body, presence(reply, stopping)),
  )
  mount(app, listJobs, ({ caller, query }) => fineTuning.list(caller.account_id, query))
  mount(app, getJob, ({ caller, params }) => fineTuning.get(caller.account_id, params.job_id))
  mount(app, changeJob, ({ caller, params, body }) => fineTuning.label(caller, params.job_id, body))
  mount(app, cancelJob, ({ caller, params }) => fineTuning.cancel(caller, params.job_id))
  mount(app, pauseJob, ({ caller, params }) => fineTuning.pause(caller, params.job_id))
  mount(app, resumeJob, ({ caller, params }) => fineTuning.resume(caller, params.job_id))
  mount(app, deleteJob, ({ caller, params }) => fineTuning.delete(caller, params.job_id))
  mount(app, listEvaluations, ({ caller, params, query }) =>
    fineTuning.evaluations(caller.account_id, params.job_id, query),
  )
  mount(app, listCheckpoints, ({ caller, params, query }) =>
    fineTuning.checkpoints(caller.account_id, params.job_id, query),
  )
  mount(app, listHeldOutRows, ({ caller, params, query }) =>
    fineTuning.heldOut(caller.account_id, params.job_id, query),
  )
  mount(app, listJobRows, ({ caller, params, query }) => fineTuning.rows(caller.account_id, params.job_id, query))
  mount(app, uploadAdapter, ({ request, caller }) =>
    readMultipart(request, AdapterFields, (form) => models.importAdapter(caller, form)),
  )
  mount(app, listTunedModels, ({ caller, query }) => models.list(caller.account_id, query))
  mount(app, getTunedModel, ({ caller, params }) => models.get(caller.account_id, params.model_id))
  mount(app, changeTunedModel, ({ caller, params, body }) => models.label(caller, params.model_id, body))
  mount(app, deleteTunedModel, ({ caller, params }) => models.delete(caller, params.model_id))
  mount(app, jobEvents, ({ caller, params, query, reply }) =>
    sendEvents(reply, stopping, (signal) => fineTuning.events(caller.account_id, params.job_id, query.after, signal)),
  )
}
