import { z } from 'zod'
import { hyperparameters, method, requestField, requestShape } from './hyperparameters.ts'

const { method_options, lora_config, training_config, evaluation_config } = hyperparameters

export const JobConfig = z.strictObject({
  method: requestField(method),
  method_options: z
    .strictObject(requestShape(method_options))
    .optional()
    .describe('What is learned: answers or preferences, and by which loss.'),
  lora_config: z.strictObject(requestShape(lora_config)).optional().describe('The adapter, for `lora` and `qlora`.'),
  training_config: z.strictObject(requestShape(training_config)).optional().describe('The training.'),
  evaluation_config: z
    .strictObject(requestShape(evaluation_config))
    .optional()
    .describe('What is evaluated and kept during the training.'),
})
export type JobConfig = z.infer<typeof JobConfig>
