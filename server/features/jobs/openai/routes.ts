import type { FastifyInstance } from 'fastify'
import { ApiError } from '../../../../contract/errors.ts'
import {
  cancelOpenaiJob,
  createCheckpointPermissions,
  createOpenaiJob,
  deleteCheckpointPermission,
  deleteModel,
  getOpenaiJob,
  listCheckpointPermissions,
  listOpenaiCheckpoints,
  listOpenaiJobEvents,
  listOpenaiJobs,
  pauseOpenaiJob,
  resumeOpenaiJob,
} from '../../../../contract/openai-fine-tuning.ts'
import { openaiPageOf } from '../../../platform/db/page.ts'
import { mount } from '../../../platform/http/mount.ts'
import type { OpenaiFineTuning } from './service.ts'

export function openaiFineTuningRoutes(app: FastifyInstance, openai: OpenaiFineTuning): void {
  mount(app, createOpenaiJob, ({ caller, body, request }) =>
    openai.create(caller, body, request.span?.headers().traceparent),
  )
  mount(app, listOpenaiJobs, ({ caller, query }) => openai.list(caller.account_id, query))
  mount(app, getOpenaiJob, ({ caller, params }) => openai.get(caller.account_id, params.job_id))
  mount(app, cancelOpenaiJob, ({ caller, params }) => openai.cancel(caller, params.job_id))
  mount(app, pauseOpenaiJob, ({ caller, params }) => openai.pause(caller, params.job_id))
  mount(app, resumeOpenaiJob, ({ caller, params }) => openai.resume(caller, params.job_id))
  mount(app, listOpenaiJobEvents, ({ caller, params, query }) => openai.events(caller.account_id, params.job_id, query))
  mount(app, listOpenaiCheckpoints, ({ caller, params, query }) =>
    openai.checkpoints(caller.account_id, params.job_id, query),
  )
  mount(app, deleteModel, ({ caller, params }) => openai.deleteModel(caller, params.model_id))

  // Models belong to one account, so a checkpoint has no permissions and can get none.
  mount(app, listCheckpointPermissions, async ({ caller, params }) => {
    await openai.requireCheckpoint(caller.account_id, params.checkpoint)
    return openaiPageOf([], 1)
  })
  mount(app, createCheckpointPermissions, async ({ caller, params }) => {
    await openai.requireCheckpoint(caller.account_id, params.checkpoint)
    throw new ApiError(
      'insufficient_permissions',
      'Models belong to one account and cannot be shared with another. Export the model and give its files away: ' +
        'POST /v1/exports.',
      { param: 'project_ids' },
    )
  })
  mount(app, deleteCheckpointPermission, async ({ caller, params }) => {
    await openai.requireCheckpoint(caller.account_id, params.checkpoint)
    throw new ApiError('not_found', `The checkpoint has no permission '${params.permission_id}'.`, {
      param: 'permission_id',
    })
  })
}
