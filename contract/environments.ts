// Environments of users: endpoints that answer what a model does in an episode, turn by turn, and may reward it.
import { z } from 'zod'
import { ShortName } from './common.ts'
import { EndpointGrader } from './graders.ts'

export const Environment = z.strictObject({
  name: ShortName.default('environment').describe('What rows call it, and what its reward is called among graders.'),
  url: z
    .string()
    .min(1)
    .max(2000)
    .describe(
      'An https address that is posted `{"environment", "episode", "turn", "last", "item", "messages"}` after each ' +
        'answer of the model, and answers `{"messages": [{"role": "tool", …}], "reward": 1, "done": false}`.',
    ),
  secret_name: EndpointGrader.shape.secret_name,
  timeout_seconds: z.number().min(1).max(120).default(30).describe('How long an answer may take.'),
  rewards: z
    .boolean()
    .default(true)
    .describe('Whether the sum of its rewards in an episode is a score. Each episode must then have one.'),
  turns_max: z.int().min(1).max(64).default(8).describe('Most answers of the model in an episode.'),
  tokens_max: z
    .int()
    .min(1)
    .max(131_072)
    .default(4096)
    .describe('Most tokens of an episode behind its prompt, of the model and of the environment.'),
})
export type Environment = z.infer<typeof Environment>

export const Environments = z
  .array(Environment)
  .min(1)
  .max(8)
  .refine((list) => !list.some(({ name }) => name in {}), 'have a reserved name')
  .refine((list) => new Set(list.map(({ name }) => name)).size === list.length, 'have a name twice')

/** What an environment answers. More fields are ignored. */
export const EnvironmentReply = z.object({
  messages: z
    .array(
      z.discriminatedUnion('role', [
        z.object({ role: z.literal('tool'), tool_call_id: z.string().min(1).max(128), content: z.string() }),
        z.object({ role: z.literal('user'), content: z.string() }),
      ]),
    )
    .max(256)
    .default([]),
  reward: z.number().nullish(),
  done: z.boolean().default(false),
})
export type EnvironmentReply = z.infer<typeof EnvironmentReply>
