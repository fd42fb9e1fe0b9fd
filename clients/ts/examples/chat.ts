/**
 * Talks with an agent on the terminal: shows what it writes and does, and asks you what it asks.
 *
 *     npm run build && node dist/examples/chat.js --agent mock
 */

import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import {
  DeltaKind,
  ItemKind,
  PermissionDecision,
  type PermissionRequest,
  type QuestionRequest,
} from "@agentstream/protocol";
import {
  connect,
  DEFAULT_ADDRESS,
  type EventStream,
  isReason,
  type Session,
} from "../src/index.js";

const { values } = parseArgs({
  options: {
    address: { type: "string", default: DEFAULT_ADDRESS },
    agent: { type: "string", default: "mock" },
    dir: { type: "string", default: process.cwd() },
  },
});
const keyboard = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** A line from the keyboard; undefined at the end of the input. */
async function ask(prompt: string): Promise<string | undefined> {
  process.stdout.write(prompt);
  const line = await keyboard.next();
  return line.done ? undefined : line.value.trim();
}

async function permit(session: Session, request: PermissionRequest): Promise<void> {
  const files = request.files.map(({ path, diff }) => `\n${path}\n${diff}`).join("");
  const what = `${request.toolName} ${request.command}${request.plan}${files}`.trim();
  const word = (await ask(`? allow ${what} [y/N/a(lways)] `))?.toLowerCase()[0];
  const decisions = { y: PermissionDecision.ACCEPT, a: PermissionDecision.ACCEPT_FOR_SESSION };
  const decision = decisions[word as keyof typeof decisions] ?? PermissionDecision.REJECT;
  await session.respond(request.requestId, { permission: { decision } });
}

async function answer(session: Session, request: QuestionRequest): Promise<void> {
  const answers = [];
  for (const question of request.questions) {
    console.log(`? ${question.text}`);
    const labels = question.options.map(({ label }) => label);
    question.options.forEach(({ label, description }, index) => {
      console.log(`  ${index + 1} ${label} ${description}`);
    });
    const text = (await ask("= ")) ?? "";
    const words = text.split(",").map((word) => word.trim());
    const chosen = words
      .map((word) => labels[Number(word) - 1] ?? word)
      .filter((word) => labels.includes(word));
    answers.push({
      questionId: question.questionId,
      labels: chosen,
      text: chosen.length ? "" : text,
    });
  }
  const answered = { answer: { case: "answered" as const, value: { answers } } };
  await session.respond(request.requestId, { question: answered });
}

/** Shows events until the turn has ended. */
async function turn(session: Session, events: EventStream): Promise<void> {
  for await (const { payload } of events) {
    try {
      if (payload.case === "permissionRequested") await permit(session, payload.value);
      if (payload.case === "questionRequested") await answer(session, payload.value);
    } catch (error) {
      if (!isReason(error, "REQUEST_ALREADY_RESOLVED")) throw error;
    }
    if (payload.case === "itemDelta" && payload.value.kind === DeltaKind.TEXT) {
      process.stdout.write(payload.value.text);
    }
    if (payload.case === "itemCompleted") {
      for (const { part } of payload.value.item?.content ?? []) {
        if (part.case === "toolCall")
          console.log(`[${part.value.name} ${part.value.argumentsJson}]`);
      }
      if (payload.value.item?.kind === ItemKind.MESSAGE) console.log();
    }
    if (payload.case === "turnEnded") {
      if (payload.value.error) console.log(`! ${payload.value.error.message}`);
      return;
    }
  }
}

const token = process.env["AGENTSTREAM_TOKEN"];
using client = connect(values.address, token ? { token } : {});
const session = await client.create({ agent: values.agent, workingDirectory: values.dir });
using events = session.follow();
for (let text = await ask("> "); text !== undefined; text = await ask("> ")) {
  await session.send(text);
  await turn(session, events);
}
await session.end();
