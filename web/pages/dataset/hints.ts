/** What helps with a problem, where its message does not say it already. The codes are stable. */
export const hints: Record<string, string> = {
  invalid_json:
    'Each row is one line of JSON. Often a quote inside a text lacks its backslash, a comma is too many, or ' +
    'a row goes over several lines.',
  messages_missing: 'Name the list of messages “messages”, or bring a table with the columns prompt and completion.',
  role_unknown: 'Name who speaks: what the model should say is of the assistant, the question of the user.',
  answer_empty: 'Write the answer that the model should give, or leave the row out.',
  call_unknown: 'Give the answer of a tool the id of the call that it answers.',
  not_for_this_base: 'Change the row as the model’s chat template wants it, or choose another model.',
  no_learned_tokens: 'Cut at more tokens under Overview, or shorten what comes before the answer.',
  duplicate: 'Leave one of them out, unless it should count double.',
  question_empty: 'Write the question, or leave the row out.',
  picture_not_fetched:
    'Look at the address in a browser, then upload the file again; or write the picture itself into the row.',
  picture_remote: 'Download the picture, and write its bytes into the row as base64.',
  too_many_pictures: 'Make two rows of it, or leave out pictures that the answer does not need.',
  too_deep: 'Write nested data as one text.',
}
