// Descriptions of all event types, for docs/reference/events.md. A missing one does not compile.
import type { exportEventTypes } from './exports.ts'
import type { jobEventTypes } from './fine-tuning.ts'
import type { webhookEventTypes } from './webhooks.ts'

interface EventText {
  /** When it is sent, as a sentence. */
  when: string
  /** The fields of its `data`, each with a description. */
  data: Record<string, string>
}

const batchEnd = {
  batch_id: 'The batch.',
  request_counts: 'How many requests it has, how many were answered and how many have an error.',
  output_file_id: 'The file of its answers, or null.',
  error_file_id: 'The file of its errors, or null.',
}

export const webhookEventTexts: Record<(typeof webhookEventTypes)[number], EventText> = {
  'training.started': {
    when: 'A job runs for the first time.',
    data: {
      job_id: 'The job.',
      model_id: 'The model that it starts from.',
      dataset_id: 'The dataset that it trains on.',
    },
  },
  'training.completed': {
    when: 'A job has its result.',
    data: {
      job_id: 'The job.',
      model_id: 'The new model, an id that deployments and inference take.',
      base_model_id: 'The base model of the new one.',
    },
  },
  'training.failed': {
    when: 'A job ended without a result and is not tried again.',
    data: { job_id: 'The job.', error: 'An object with `code` and `message`; docs/errors.md lists the codes.' },
  },
  'training.cancelled': {
    when: 'A job was cancelled. Not in the specification: subscribe to it by its name.',
    data: {
      job_id: 'The job.',
      model_id: 'The model that it started from.',
      dataset_id: 'The dataset that it trained on.',
    },
  },
  'model.deployed': {
    when: 'A deployment serves a model: a new deployment is ready, or one was switched to another model.',
    data: {
      deployment_id: 'The deployment.',
      name: 'Its name, which requests take as `model`.',
      model_id: 'The model that it serves.',
    },
  },
  'usage.threshold': {
    when: 'Usage reached a threshold that the account has set (`PUT /v1/usage/thresholds`).',
    data: {
      metric: 'What was counted.',
      percent: 'Which of the percentages was reached.',
      threshold: 'The threshold that it is a percentage of.',
      used: 'What was used when it was reached.',
      period: 'The day or month (UTC) that it counts for, as `from` and `to`.',
    },
  },
  'batch.completed': { when: 'Every request of a batch was answered or has its error.', data: batchEnd },
  'batch.failed': {
    when: 'A batch was not begun, because of its file.',
    data: { batch_id: 'The batch.', errors: 'The first problems, each with `code`, `message`, `param` and `line`.' },
  },
  'batch.expired': { when: 'A batch was not done within its 24 hours.', data: batchEnd },
  'batch.cancelled': { when: 'A batch was cancelled.', data: batchEnd },
}

export const jobEventTexts: Record<(typeof jobEventTypes)[number], EventText> = {
  status: {
    when: 'The job has another status, or its trainer begins another phase.',
    data: {
      status: 'The status that the job has now.',
      phase:
        'Phase of a running job: `preparing`, `loading`, `pictures` (being encoded), `reference` (answers are scored ' +
        'before a training on preferences), `training` or `converting`.',
      paused: 'Whether the job is paused.',
      attempt: 'Which attempt at the job this is.',
      model: 'The result of a completed job.',
    },
  },
  progress: {
    when:
      'During training, with the estimated time left; while weights are downloaded, after every tenth of them; ' +
      'while the training environment is set up, at each step.',
    data: {
      progress: '0 to 1.',
      current_epoch: 'The epoch, counted from 1.',
      seconds_left: 'Estimated seconds until the result.',
      download: 'Instead of the others: `status`, `progress`, `bytes`, `total_bytes` and `error` of the download.',
      training_setup: 'Instead of the others: `ready`, and how many steps are `done`, `of` how many.',
    },
  },
  metrics: {
    when: 'After a training step, at most twice a second; after each evaluation, with the validation loss.',
    data: {
      step: 'The step.',
      steps_total: 'Steps of the whole run.',
      epoch: 'The epoch, counted from 1.',
      loss: 'Training loss of the step.',
      learning_rate: 'Learning rate of the step.',
      tokens_per_second: 'Trained tokens a second.',
      tokens: 'Tokens trained on so far.',
      grad_norm: 'Norm of the gradient before it is clipped.',
      memory_mb: 'Memory that the trainer holds, of the GPU where it has one; of several, the first.',
      cpu_cores: 'Processor time of the step by its duration: how many cores it kept busy.',
      validation_loss: 'Loss on the held-out rows.',
      reward_margin: 'With preferences: reward of the good answers of the batch less that of the bad ones.',
      reward_accuracy: 'Share of the preferences of the batch on whose side the model is.',
      validation_exact: 'Share of the held-out rows whose every learned token was the first choice.',
      validation_reward_margin: 'The reward margin of the held-out preferences.',
      validation_reward_accuracy: 'Share of the held-out preferences on whose side the model is.',
      best: 'Whether the validation loss is the best so far.',
    },
  },
  checkpoint: {
    when: 'A checkpoint is on disk: an interrupted job resumes from it.',
    data: { step: 'The step after which it was written.', attempt: 'The attempt that wrote it.', size_mb: 'Its size.' },
  },
  sample: {
    when: 'A sample prompt was answered at an evaluation; the message is the answer.',
    data: {
      prompt: 'The messages of the prompt.',
      answer: 'The answer of the model in training.',
      base: 'The answer of the base.',
      step: 'The step.',
    },
  },
  log: { when: 'Something worth knowing, such as an early stop.', data: {} },
  warning: {
    when: 'Something went wrong and the job continues.',
    data: { code: 'What went wrong, where it has a code.' },
  },
  error: { when: 'Why the job failed; an event `status` follows.', data: { code: 'The code of `job.error`.' } },
}

export const exportEventTexts: Record<(typeof exportEventTypes)[number], EventText> = {
  status: { when: 'The export has another status.', data: { status: 'The status that the export has now.' } },
  progress: {
    when: 'As its files are made.',
    data: {
      stage: 'What is being done.',
      done: 'Share of the stage, 0 to 1.',
      progress: 'Share of the whole export, 0 to 1.',
    },
  },
  log: { when: 'Something worth knowing.', data: {} },
  warning: {
    when: 'Something went wrong and the export continues.',
    data: { code: 'What went wrong, where it has a code.' },
  },
  error: {
    when: 'Why the export failed; an event `status` follows.',
    data: { code: 'The code of `export.error`.', check: 'What was compared, where it failed the check.' },
  },
}
