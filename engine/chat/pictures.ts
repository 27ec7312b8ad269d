// Pictures of a conversation: where the chat template shows them, and the tokens that stand for them in the prompt.
import type { ChatMessage } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import type { Vocab } from '../llama/vocab.ts'
import { findersOf } from '../tokenizer/tokenizer.ts'
import type { PictureFeatures } from '../vision/features.ts'
import { isPictureToken, type PictureSpan } from '../vision/picture-tokens.ts'
import type { TemplateContent } from './content.ts'
import { EndlessTemplate } from './render-bounds.ts'

/** How a model's chat template shows contents of messages. */
export interface TemplateSight {
  /** It reads only lists of parts, even where there is only text. */
  parts_only: boolean
  /** The tokens that it writes for a picture; null if it writes none. */
  marker: number[] | null
  /** The rendered prompt as the family's processor completes it around its pictures. */
  complete(rendered: string): string
}

// Short, as templates may cut texts, and nothing that a template writes by itself.
const [left, right] = ['Zqx', 'Xqz']

// Gemma's processor sets empty lines around a picture, which neither its template nor libmtmd does. They are part of
// the text: with the line breaks beside them they are other tokens than by themselves.
const gemmaMarker = '<start_of_image>'
const withEmptyLines = (rendered: string) => rendered.replaceAll(gemmaMarker, `\n\n${gemmaMarker}\n\n`)

/** Reads it from what the template makes of messages. `render` takes the content of a user's message, and may throw. */
export function readSight(vocab: Vocab, render: (content: TemplateContent) => string): TemplateSight {
  const attempt = (content: TemplateContent): string => {
    try {
      const shown = render(content)
      // A template that knows no parts may write the list as JSON.
      return /["']type["']/.test(shown) ? '' : shown
    } catch (error) {
      if (error instanceof EndlessTemplate) throw error
      return ''
    }
  }
  const text = { type: 'text' as const, text: left }
  const parts_only = !attempt(left).includes(left) && attempt([text]).includes(left)
  const shown = attempt([text, { type: 'image' }, { type: 'text', text: right }])
  const [from, to] = [shown.indexOf(left) + left.length, shown.indexOf(right)]
  const marker = from < left.length || to < from ? null : markerIn(vocab, shown.slice(from, to))
  const gemma = vocab.special_tokens.find(({ text }) => text === gemmaMarker)?.token
  const isGemma = marker?.length === 1 && marker[0] === gemma
  return { parts_only, marker, complete: isGemma ? withEmptyLines : (rendered) => rendered }
}

/** From the first special token of the text to its last; null without any. */
function markerIn(vocab: Vocab, text: string): number[] | null {
  const parts = [...findersOf(vocab).all.partition(text)].filter((part) => part !== '')
  const isSpecial = (part: (typeof parts)[number]) => typeof part !== 'string'
  const [first, last] = [parts.findIndex(isSpecial), parts.findLastIndex(isSpecial)]
  if (first < 0) return null
  return parts
    .slice(first, last + 1)
    .flatMap((part) => (typeof part === 'string' ? vocab.tokenize(part) : [part.token]))
}

/** A picture of a message, and the field of the request that has it. */
export interface PicturePart {
  url: string
  param: string
}

/** The pictures of a conversation, in order. */
export function picturesOf(messages: readonly ChatMessage[]): PicturePart[] {
  return messages.flatMap(({ content }, message) =>
    typeof content === 'string'
      ? []
      : (content ?? []).flatMap((part, index) =>
          part.type === 'image_url'
            ? [{ url: part.image_url.url, param: `messages.${message}.content.${index}.image_url.url` }]
            : [],
        ),
  )
}

/**
 * Where the marker is in these tokens, once for each of `count` pictures. Throws ApiError invalid_request if the
 * template has shown another number of pictures.
 */
export function findMarkers(tokens: readonly number[], marker: readonly number[], count: number): number[] {
  const places: number[] = []
  for (let at = 0; at + marker.length <= tokens.length; at++) {
    if (!marker.every((token, index) => tokens[at + index] === token)) continue
    places.push(at)
    at += marker.length - 1
  }
  if (places.length !== count)
    throw new ApiError(
      'invalid_request',
      `The model’s chat template shows ${places.length} pictures of these messages, which have ${count}. ` +
        'Put each picture into a message of the role user.',
      { param: 'messages' },
    )
  return places
}

/** The prompt with the pictures in the place of their markers, which are `length` tokens long. */
export function showPictures(
  tokens: readonly number[],
  markers: readonly number[],
  length: number,
  pictures: readonly PictureFeatures[],
): { prompt: number[]; spans: PictureSpan[] } {
  const prompt: number[] = []
  const spans: PictureSpan[] = []
  let from = 0
  for (const [index, at] of markers.entries()) {
    for (; from < at; from++) prompt.push(tokens[from]!)
    const picture = pictures[index]!
    for (const span of picture.spans) spans.push({ ...span, start: prompt.length + span.start })
    for (const token of picture.tokens) prompt.push(token)
    from += length
  }
  for (; from < tokens.length; from++) prompt.push(tokens[from]!)
  // The answer's first token comes from the logits of the last one, and vectors have none.
  if (isPictureToken(prompt.at(-1)!))
    throw new ApiError('invalid_request', 'Write a text after the last picture.', { param: 'messages' })
  return { prompt, spans }
}
