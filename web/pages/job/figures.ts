// The curves of a job beside its loss or reward. Those without values in its events are not shown.
import { formatBytes, formatDuration, formatNumber, formatPercent } from '../../lib/format.ts'
import type { FigureName } from './run.ts'

export interface Figure {
  title: string
  help: string
  lines: { name: FigureName; label: string; points?: boolean | undefined }[]
  format?: (value: number) => string
  /** As noisy as the loss. */
  noisy?: boolean
}

/** An axis around a constant reaches beyond what a share can be; a moving average only by its rounding. */
const formatShare = (value: number) => (value < 0 || value > 1 + 1e-9 ? '' : formatPercent(value))

export const figures: readonly Figure[] = [
  {
    title: 'Reward margin',
    help:
      'How much more the model prefers the chosen answers over the rejected ones than before training. It ' +
      'should rise.',
    lines: [
      { name: 'reward_margin', label: 'Training' },
      { name: 'validation_reward_margin', label: 'Validation', points: true },
    ],
    noisy: true,
  },
  {
    title: 'Reward accuracy',
    help: 'Share of preferences where the model favors the chosen answer.',
    lines: [
      { name: 'reward_accuracy', label: 'Training' },
      { name: 'validation_reward_accuracy', label: 'Validation', points: true },
    ],
    format: formatShare,
    noisy: true,
  },
  {
    title: 'Answer length',
    help: 'Mean length of the answers in tokens. It grows where longer answers score better, also for no good reason.',
    lines: [
      { name: 'answer_tokens', label: 'Training' },
      { name: 'validation_answer_tokens', label: 'Held-out', points: true },
    ],
    noisy: true,
  },
  {
    title: 'Thoughts',
    help: 'How many tokens of an answer are thoughts, on average.',
    lines: [
      { name: 'reasoning_tokens', label: 'Training' },
      { name: 'validation_reasoning_tokens', label: 'Held-out', points: true },
    ],
    noisy: true,
  },
  {
    title: 'Distance from the base',
    help:
      'How far the model has moved from its base: the KL divergence of a token of the answers to held-out prompts, ' +
      'in nats. It grows as the model learns; a jump without more reward is a reason to stop.',
    lines: [{ name: 'validation_kl', label: 'Held-out', points: true }],
  },
  {
    title: 'Turns',
    help: 'How often the model answered in an episode of an environment, on average.',
    lines: [{ name: 'turns', label: 'Turns' }],
    noisy: true,
  },
  {
    title: 'Environment latency',
    help: 'Time that an environment took in an episode, on average.',
    lines: [{ name: 'environment_seconds', label: 'Mean' }],
    format: (value) => formatDuration(value),
  },
  {
    title: 'Cut answers',
    help: 'Share of the answers that were cut at max tokens. They are graded as they are: many need a higher limit.',
    lines: [
      { name: 'cut_share', label: 'Training' },
      { name: 'validation_cut_share', label: 'Held-out', points: true },
    ],
    format: formatShare,
    noisy: true,
  },
  {
    title: 'Entropy',
    help: 'How open the answers still are, in nats per token. Near 0 the model tries nothing new any more.',
    lines: [{ name: 'entropy', label: 'Entropy' }],
    noisy: true,
  },
  {
    title: 'Diversity',
    help:
      'Distinct answers: share of the answers to a prompt that differ. Equal scores: share of the prompts whose ' +
      'answers all scored the same; they teach nothing and are replaced by other prompts.',
    lines: [
      { name: 'distinct_share', label: 'Distinct answers' },
      { name: 'equal_share', label: 'Prompts with equal scores' },
    ],
    format: formatShare,
    noisy: true,
  },
  {
    title: 'Clipped tokens',
    help: 'Share of the tokens whose gradient was clipped, as the model had moved too far from the one that answered.',
    lines: [{ name: 'clipped_share', label: 'Clipped tokens' }],
    format: formatShare,
    noisy: true,
  },
  {
    title: 'Probability gap',
    help:
      'Mean difference of the log-probabilities of the engine, which answers, and of the trainer, in nats. It should ' +
      'stay small.',
    lines: [{ name: 'probability_gap', label: 'Probability gap' }],
    noisy: true,
  },
  {
    title: 'Grader failures',
    help: 'Answers of a step that a grader could not score. They are left out, and above a share the job fails.',
    lines: [{ name: 'grader_failures', label: 'Answers without a score' }],
    format: (value) => (Number.isInteger(value) ? formatNumber(value) : ''),
  },
  {
    title: 'Grader latency',
    help: 'Time to grade an answer: the mean, and the time within which 19 of 20 were graded.',
    lines: [
      { name: 'grader_seconds', label: 'Mean' },
      { name: 'grader_seconds_p95', label: '95th percentile' },
    ],
    format: (value) => formatDuration(value),
  },
  {
    title: 'Time of a step',
    help: 'Where the time goes: generating the answers, grading them, and updating the weights.',
    lines: [
      { name: 'sampling_seconds', label: 'Generating' },
      { name: 'grading_seconds', label: 'Grading' },
      { name: 'update_seconds', label: 'Updating' },
    ],
    format: (value) => formatDuration(value),
    noisy: true,
  },
  {
    title: 'Learning rate',
    help: 'How far each step moves the weights. It warms up first, then decays to 0.',
    lines: [{ name: 'learning_rate', label: 'Learning rate' }],
  },
  {
    title: 'Gradient norm',
    help:
      'Size of the weight update before clipping at 1. Spikes point to unusual rows or a learning rate that is ' +
      'too high.',
    lines: [{ name: 'grad_norm', label: 'Gradient norm' }],
    noisy: true,
  },
  {
    title: 'Tokens per second',
    help: 'Training speed. It drops while other programs or requests use the processor.',
    lines: [{ name: 'tokens_per_second', label: 'Tokens per second' }],
    format: (value) => formatNumber(value, 3),
  },
  {
    title: 'Memory',
    help: 'Memory that the training holds: of the GPU, or on a machine without one of the machine.',
    lines: [{ name: 'memory_mb', label: 'Memory' }],
    format: (value) => formatBytes(value * 1e6),
  },
  {
    title: 'Busy cores',
    help: 'Processor cores that the training keeps busy. Fewer than usual: other programs or requests take them.',
    lines: [{ name: 'cpu_cores', label: 'Busy cores' }],
    format: (value) => formatNumber(value, 3),
  },
  {
    title: 'Held-out accuracy',
    help: 'Share of tokens that were the model’s first choice, and of rows where every token was.',
    lines: [
      { name: 'validation_accuracy', label: 'Tokens', points: true },
      { name: 'validation_exact', label: 'Rows', points: true },
    ],
    format: formatShare,
  },
]
