/** Options of a test that takes long and runs in `npm run test:full` alone, or where its file is named. */
export const full = { skip: process.env.TEST_FULL ? false : 'npm run test:full' }

/** Options of a test with little of the database in it: on Postgres it runs in `npm run test:full` alone. */
export const sqliteOrFull = { skip: process.env.TEST_DATABASE_URL ? full.skip : false }
