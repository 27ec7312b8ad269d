// What is put behind sampled tokens is what the template writes there in the conversation as a whole.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ChatMessage, ChatRequest, ToolCall } from '../../../contract/chat.ts'
import { ApiError } from '../../../contract/errors.ts'
import { continuationText } from '../../../engine/chat/continuation.ts'
import { renderChat } from '../../../engine/chat/conversation.ts'
import type { ChatModel } from '../../../engine/chat/template.ts'
import { stripMarkers } from '../../../engine/tokenizer/tokenizer.ts'
import { missing, modelNamed, templateNames } from './template-calls.ts'

const call: ToolCall = { id: 'call00001', type: 'function', function: { name: 'look_up', arguments: '{"place":"x"}' } }
const asked: ChatMessage = { role: 'user', content: 'Weather in Paris?' }
const called: ChatMessage = { role: 'assistant', content: null, tool_calls: [call] }
const result: ChatMessage = { role: 'tool', tool_call_id: call.id, content: 'It rains.' }
const answer: ChatMessage = { role: 'assistant', content: 'It may rain.' }
const more: ChatMessage = { role: 'user', content: 'And in Rome?' }

const cases: { name: string; before: ChatMessage[]; calls: ToolCall[]; following: ChatMessage[] }[] = [
  { name: 'the result of a call', before: [asked, called], calls: [call], following: [result] },
  { name: 'a further question', before: [asked, answer], calls: [], following: [more] },
]

/** Ends of answers beside those of `modelNamed`. */
const ends = (
  '<|end|> <seed:eos> <|user|> <|observation|> <end_of_sentence> <end_of_turn> <turn|> <|end_of_msg|> <|eot_id|> ' +
  '<|end_of_text|> </assistant> <|im_end|>'
).split(' ')

function modelOf(template: string): ChatModel {
  const model = modelNamed(template)
  const others = ends.map((text, index) => ({ token: 400 + index, text, control: true, lstrip: false, rstrip: false }))
  return { ...model, vocab: { ...model.vocab, special_tokens: [...model.vocab.special_tokens, ...others] } }
}

/** Null where a template has no place behind an answer, or cannot write such a conversation at all. */
const refused = (work: () => string): string | null => {
  try {
    return work()
  } catch (error) {
    if (error instanceof ApiError) return null
    throw error
  }
}

for (const { name, before, calls, following } of cases)
  test(`every template continues with ${name} as it writes the whole`, { skip: missing }, () => {
    const outcomes = templateNames.map((template) => {
      const model = modelOf(template)
      const whole = refused(() => stripMarkers(renderChat(model, [...before, ...following])))
      const request = { model: 'm', messages: following } as ChatRequest
      const text = refused(() => stripMarkers(continuationText(model, request, calls)))
      return { template, whole, text }
    })
    const compared = outcomes.filter(({ whole, text }) => whole !== null && text !== null)
    for (const { template, whole, text } of compared)
      assert.ok(whole!.endsWith(text!), `${template}:\n${JSON.stringify(text)}\n${JSON.stringify(whole!.slice(-600))}`)
    const lost = outcomes.filter(({ whole, text }) => whole !== null && text === null).map(({ template }) => template)
    assert.ok(lost.length < templateNames.length / 8, `these cannot be continued: ${lost}`)
  })
