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
import {
  getRollouts,
  listCheckpoints,
  listEvaluations,
  listHeldOutRows,
  listJobRows,
  listRollouts,
} from '../../../contract/job-history.ts'
import { mount } from '../../platform/http/mount.ts'
import { sendEvents } from '../../platform/http/ndjson-response.ts'
import { presence } from '../../platform/http/presence.ts'
import type { Jobs } from './service.ts'

export function jobRoutes(app: FastifyInstance, jobs: Jobs, stopping: AbortSignal): void {
  mount(app, createJob, ({ caller, body, request }) =>
    jobs.creation.create(caller, { ...body, traceparent: request.span?.headers().traceparent }),
  )
  mount(app, estimateJob, ({ caller, body, reply }) =>
    jobs.creation.estimate(caller.account_id, body, presence(reply, stopping)),
  )
  mount(app, listJobs, ({ caller, query }) => jobs.list(caller.account_id, query))
  mount(app, getJob, ({ caller, params }) => jobs.get(caller.account_id, params.job_id))
  mount(app, changeJob, ({ caller, params, body }) => jobs.label(caller, params.job_id, body))
  mount(app, cancelJob, ({ caller, params }) => jobs.cancel(caller, params.job_id))
  mount(app, pauseJob, ({ caller, params }) => jobs.pause(caller, params.job_id))
  mount(app, resumeJob, ({ caller, params }) => jobs.resume(caller, params.job_id))
  mount(app, deleteJob, ({ caller, params }) => jobs.delete(caller, params.job_id))
  mount(app, listEvaluations, ({ caller, params, query }) =>
    jobs.history.evaluations(caller.account_id, params.job_id, query),
  )
  mount(app, listCheckpoints, ({ caller, params, query }) =>
    jobs.history.checkpoints(caller.account_id, params.job_id, query),
  )
  mount(app, listHeldOutRows, ({ caller, params, query }) =>
    jobs.history.heldOut(caller.account_id, params.job_id, query),
  )
  mount(app, listJobRows, ({ caller, params, query }) => jobs.history.rows(caller.account_id, params.job_id, query))
  mount(app, listRollouts, ({ caller, params, query }) =>
    jobs.history.rolloutSteps(caller.account_id, params.job_id, query),
  )
  mount(app, getRollouts, ({ caller, params }) => jobs.history.rollouts(caller.account_id, params.job_id, params.step))
  mount(app, jobEvents, ({ caller, params, query, reply }) =>
    sendEvents(reply, stopping, (signal) => jobs.events(caller.account_id, params.job_id, query.after, signal)),
  )
}
