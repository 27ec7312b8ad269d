import type { FastifyInstance } from 'fastify'
import { listCheckpoints, listEvaluations, listJobRows } from '../../contract/job-history.ts'
import {
  AdapterFields,
  changeTunedModel,
  deleteTunedModel,
  getTunedModel,
  listTunedModels,
  uploadAdapter,
} from '../../contract/models.ts'
import {
  cancelJob,
  changeJob,
  createJob,
  estimateJob,
  getJob,
  jobEvents,
  listJobs,
  pauseJob,
  resumeJob,
} from '../../contract/tuning.ts'
import { mount } from '../http/mount.ts'
import { readForm } from '../http/multipart.ts'
import { sendEvents } from '../http/ndjson-response.ts'
import type { TunedModels } from './models/registry.ts'
import type { Tuning } from './service.ts'

export function tuningRoutes(app: FastifyInstance, tuning: Tuning, models: TunedModels, stopping: AbortSignal): void {
  mount(app, createJob, ({ caller, body }) => tuning.create(caller, body))
  mount(app, estimateJob, ({ caller, body }) => tuning.estimate(caller.account_id, body))
  mount(app, listJobs, ({ caller, query }) => tuning.list(caller.account_id, query))
  mount(app, getJob, ({ caller, params }) => tuning.get(caller.account_id, params.job_id))
  mount(app, changeJob, ({ caller, params, body }) => tuning.label(caller, params.job_id, body))
  mount(app, cancelJob, ({ caller, params }) => tuning.cancel(caller, params.job_id))
  mount(app, pauseJob, ({ caller, params }) => tuning.pause(caller, params.job_id))
  mount(app, resumeJob, ({ caller, params }) => tuning.resume(caller, params.job_id))
  mount(app, listEvaluations, ({ caller, params, query }) =>
    tuning.evaluations(caller.account_id, params.job_id, query),
  )
  mount(app, listCheckpoints, ({ caller, params, query }) =>
    tuning.checkpoints(caller.account_id, params.job_id, query),
  )
  mount(app, listJobRows, ({ caller, params, query }) => tuning.rows(caller.account_id, params.job_id, query))
  mount(app, uploadAdapter, ({ request, caller }) =>
    readForm(request, AdapterFields, (form) => models.bring(caller, form)),
  )
  mount(app, listTunedModels, ({ caller, query }) => models.list(caller.account_id, query))
  mount(app, getTunedModel, ({ caller, params }) => models.get(caller.account_id, params.model_id))
  mount(app, changeTunedModel, ({ caller, params, body }) => models.label(caller, params.model_id, body))
  mount(app, deleteTunedModel, ({ caller, params }) => models.delete(caller, params.model_id))
  mount(app, jobEvents, ({ caller, params, query, reply }) =>
    sendEvents(reply, stopping, (signal) => tuning.events(caller.account_id, params.job_id, query.after, signal)),
  )
}
