// The agreement to a call that costs: the client asks its user, or the call is made again with a single-use token.
import { createHash, randomBytes } from 'node:crypto'
import type { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { ErrorCode, McpError } from '@modelcontextprotocol/sdk/types.js'
import { z } from 'zod'
import { ToolError } from './errors.ts'

const lifetime_ms = 10 * 60_000
/** Tokens of one session that wait, at most; the oldest is dropped. */
const waitingMax = 20

export const CostEstimate = z.object({
  seconds: z.number().nullable().describe('How long it takes. Null: not known before.'),
  tokens: z.number().nullable().describe('Tokens that are trained, or read and written at most. Null: not known.'),
  price: z
    .object({ amount: z.number(), currency: z.string() })
    .nullable()
    .describe('By the prices of the service. Null: not known.'),
  memory_mb: z.number().nullable().describe('Peak of the memory. Null: no more than serving needs.'),
  notes: z.array(z.string()).describe('What else there is to know before agreeing.'),
})
export type CostEstimate = z.infer<typeof CostEstimate>

/** The output fields of every tool that asks. */
export const asking = {
  estimate: CostEstimate.optional(),
  confirmation: z.string().optional().describe('Works once, for the same arguments, until `expires_at`.'),
  expires_at: z.iso.datetime().optional(),
}

/** The input field of every tool that asks. */
export const confirmation = z
  .string()
  .max(100)
  .optional()
  .describe(
    'Only for the second call: the `confirmation` of the first one, once the user has seen its estimate and agreed. ' +
      'All other arguments must stay the same.',
  )

interface ConfirmRequest {
  tool: string
  /** What is agreed to: the arguments of the tool. A field `confirmation` is not part of them. */
  args: Record<string, unknown> & { confirmation?: string | undefined }
  /** What will happen, as the end of the question "Shall I …?" */
  action: string
  estimate: () => Promise<CostEstimate>
}

type Confirmed =
  | { status: 'agreed' }
  | { status: 'declined'; summary: string; data: { status: 'declined'; estimate: CostEstimate } }
  | {
      status: 'needs_confirmation'
      summary: string
      data: { status: 'needs_confirmation'; estimate: CostEstimate; confirmation: string; expires_at: string }
    }

export type Confirm = (request: ConfirmRequest) => Promise<Confirmed>

interface Confirmations {
  issue(tool: string, args: object): { confirmation: string; expires_at: string }
  /** Uses a token up. Throws a ToolError where it is not for this call. */
  redeem(confirmation: string, tool: string, args: object): void
}

/** The tokens of one session. `now`: unix milliseconds. */
export function createConfirmations(now: () => number = Date.now): Confirmations {
  const waiting = new Map<string, { call: string; expires_at: number }>()
  return {
    issue(tool, args) {
      for (const [token, { expires_at }] of waiting) if (expires_at <= now()) waiting.delete(token)
      if (waiting.size >= waitingMax) waiting.delete(waiting.keys().next().value!)
      const token = `confirm_${randomBytes(18).toString('base64url')}`
      const expires_at = now() + lifetime_ms
      waiting.set(token, { call: digest(tool, args), expires_at })
      return { confirmation: token, expires_at: new Date(expires_at).toISOString() }
    },
    redeem(token, tool, args) {
      const entry = waiting.get(token)
      if (!entry || entry.expires_at <= now())
        throw new ToolError(
          'confirmation_invalid',
          'This confirmation was used already, has expired or is of another session. Call without it for a new ' +
            'estimate.',
        )
      if (entry.call !== digest(tool, args))
        throw new ToolError(
          'confirmation_mismatch',
          'This confirmation is for other arguments. Repeat exactly those of its estimate, or call without it for a ' +
            'new one.',
        )
      waiting.delete(token)
    },
  }
}

/** The same for arguments that say the same, whatever the order of their fields. */
function digest(tool: string, args: object): string {
  const sorted = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(sorted)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(
      Object.entries(value)
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([key, field]) => [key, sorted(field)]),
    )
  }
  return createHash('sha256')
    .update(JSON.stringify([tool, sorted(args)]))
    .digest('hex')
}

interface Asker {
  server: Server
  confirmations: Confirmations
  signal: AbortSignal
  requestId: string | number
}

/** Asks through the client where it can ask its user; else answers with the estimate and a token. */
export const createConfirm =
  ({ server, confirmations, signal, requestId }: Asker): Confirm =>
  async ({ tool, args, action, estimate }) => {
    const { confirmation: token, ...call } = args
    const canAsk = server.getClientCapabilities()?.elicitation?.form !== undefined
    if (!canAsk && token !== undefined) {
      confirmations.redeem(token, tool, call)
      return { status: 'agreed' }
    }
    const estimated = await estimate()
    if (!canAsk) {
      const issued = confirmations.issue(tool, call)
      return {
        status: 'needs_confirmation',
        summary:
          `Nothing has happened yet. Show the user this estimate and ask: shall I ${action}? ${sentence(estimated)} ` +
          `Only if the user agrees, call ${tool} again with the same arguments and confirmation ` +
          `"${issued.confirmation}".`,
        data: { status: 'needs_confirmation', estimate: estimated, ...issued },
      }
    }
    const agreed = await ask(server, `Shall I ${action}? ${sentence(estimated)}`, { signal, requestId })
    // A client that has cancelled the call meanwhile must not find that it was done all the same.
    signal.throwIfAborted()
    if (agreed) return { status: 'agreed' }
    return {
      status: 'declined',
      summary: 'The user did not agree, so nothing was done. Do not try again unless the user asks for it.',
      data: { status: 'declined', estimate: estimated },
    }
  }

async function ask(
  server: Server,
  message: string,
  { signal, requestId }: { signal: AbortSignal; requestId: string | number },
): Promise<boolean> {
  try {
    const { action, content } = await server.elicitInput(
      {
        message,
        requestedSchema: {
          type: 'object',
          properties: {
            agree: { type: 'boolean', title: 'Yes, do it', description: 'It costs what the estimate says.' },
          },
          required: ['agree'],
        },
      },
      { signal, relatedRequestId: requestId, timeout: lifetime_ms },
    )
    return action === 'accept' && content?.agree === true
  } catch (error) {
    signal.throwIfAborted()
    if (error instanceof McpError && error.code === ErrorCode.RequestTimeout)
      throw new ToolError('not_confirmed', 'Nobody answered within 10 minutes, so nothing was done.')
    if (error instanceof McpError)
      throw new ToolError('not_confirmed', 'The client could not ask its user, so nothing was done.')
    throw error
  }
}

/** An estimate in words. */
function sentence({ seconds, tokens, price, memory_mb, notes }: CostEstimate): string {
  const parts = [
    `time: ${seconds === null ? 'not known before' : duration(seconds)}`,
    tokens !== null && `tokens: ${tokens.toLocaleString('en')}`,
    `price: ${price === null ? 'not known before' : `${amount(price.amount)} ${price.currency}`}`,
    memory_mb !== null && `memory: ${memory_mb.toLocaleString('en')} MB`,
  ].filter(Boolean)
  return `Estimate: ${parts.join('; ')}.${notes.map((note) => ` ${note}`).join('')}`
}

function duration(seconds: number): string {
  if (seconds < 90) return `about ${Math.max(1, Math.round(seconds))} s`
  if (seconds < 5400) return `about ${Math.round(seconds / 60)} min`
  return `about ${(seconds / 3600).toFixed(1)} h`
}

/** Enough digits to tell small prices from none. */
const amount = (value: number) => (value === 0 || value >= 0.01 ? value.toFixed(2) : value.toPrecision(2))
