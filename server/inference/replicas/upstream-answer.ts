// Answers of OpenAI-compatible servers that are not our engine, and what they cannot be asked for.
import { isUtf8 } from 'node:buffer'
import { ApiError } from '../../../contract/errors.ts'
import { hasRemoteImage } from './body.ts'
import { readFirstChunk } from './http-client/client.ts'
import type { HttpResponse } from './http-client/response.ts'
import { ReplicaFailure, type ReplicaResponse } from './replica.ts'
import { modelInChunk } from './upstream-weights.ts'

/** Throws a ReplicaFailure for a wrong content type: a proxy's error page may also have status 200. */
export function requireContentType(response: HttpResponse, stream: boolean): void {
  const type = response.headers['content-type'] ?? 'no type'
  if ((stream ? /^text\/event-stream\b/i : /^application\/json\b/i).test(type)) return
  response.destroy()
  throw new ReplicaFailure(
    'engine_failed',
    `The server of this model answered with ${type.slice(0, 100)} in place of ${stream ? 'an event stream' : 'JSON'}.`,
  )
}

/** Throws for what these servers cannot do, or must not. `fetch_images`: whether they may fetch addresses of images. */
export function requireSupported(body: Record<string, unknown>, fetch_images: boolean): void {
  if (!fetch_images && hasRemoteImage(body))
    throw new ApiError(
      'invalid_request',
      "'messages': the server of this model does not fetch images. Send them as data: URLs.",
      { param: 'messages' },
    )
  if (body.parse_special === false)
    throw new ApiError(
      'parameter_not_supported',
      "'parse_special': the server of this model always reads control tokens in prompts. Leave it out.",
      { param: 'parse_special' },
    )
  // Some ignore it, and would continue the prompt as if nothing followed.
  if (body.suffix)
    throw new ApiError(
      'parameter_not_supported',
      "'suffix': the server of this model may ignore it. Leave it out, or write the model's own tokens for prefix, " +
        'suffix and middle into the prompt.',
      { param: 'suffix' },
    )
}

/** What an upstream answers, and the model that it says has answered. */
export interface Answer {
  content: ReplicaResponse['content']
  reported: string | undefined
}

export async function firstOfStream(stream: HttpResponse): Promise<Answer> {
  const firstChunk = await readFirstChunk(stream)
  return { content: { firstChunk, stream }, reported: modelInChunk(firstChunk) }
}

/** A JSON response with `model` set to the client's name. Throws a ReplicaFailure if it is not a JSON object. */
export function withModelName(bytes: Buffer, name: string): Answer {
  let answer: unknown
  try {
    answer = JSON.parse(bytes.toString('utf8'))
  } catch {}
  if (typeof answer !== 'object' || answer === null || Array.isArray(answer))
    throw new ReplicaFailure(
      'engine_failed',
      'The server of this model answered with something that is not a JSON object.',
    )
  const { model } = answer as { model?: unknown }
  const reported = typeof model === 'string' ? model : undefined
  const body = model === name && isUtf8(bytes) ? bytes : Buffer.from(JSON.stringify({ ...answer, model: name }))
  return { content: { body }, reported }
}
