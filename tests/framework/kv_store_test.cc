#include "framework/runtime/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

using testing::HasSubstr;

template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(KvStoreTest, SetGetAndSetIfAbsent) {
  KvServer server("127.0.0.1", 0);
  KvClient a("127.0.0.1", server.port(), 5);
  KvClient b("127.0.0.1", server.port(), 5);
  EXPECT_EQ(a.local_address(), "127.0.0.1");
  const std::string binary("\0x\xff", 3);
  a.Set("k", binary);
  EXPECT_EQ(b.Get("k", 1), binary);
  a.Set("k", "");
  EXPECT_EQ(b.Get("k", 1), "");
  EXPECT_TRUE(a.SetIfAbsent("once", "a"));
  EXPECT_FALSE(b.SetIfAbsent("once", "b"));
  EXPECT_EQ(b.Get("once", 1), "a");
}

TEST(KvStoreTest, LargeValues) {
  KvServer server("127.0.0.1", 0);
  KvClient client("127.0.0.1", server.port(), 5);
  const std::string value(kMaxValueBytes, 'v');
  client.Set("large", value);
  EXPECT_EQ(client.Get("large", 5), value);
  EXPECT_THAT(ErrorOf([&] { client.Set("more", value + "v"); }),
              HasSubstr("InvalidArgument: a value of 16777217 bytes"));
  EXPECT_THAT(ErrorOf([&] { client.Get(std::string(5000, 'k'), 1); }),
              HasSubstr("InvalidArgument: a key of 5000 bytes, at most 4096"));
}

TEST(KvStoreTest, GetWaitsForTheKey) {
  KvServer server("127.0.0.1", 0);
  KvClient waiter("127.0.0.1", server.port(), 5);
  std::thread setter([&] {
    KvClient client("127.0.0.1", server.port(), 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    client.Set("late", "here");
  });
  EXPECT_EQ(waiter.Get("late", 10), "here");
  setter.join();
}

TEST(KvStoreTest, GetGivesUpInTimeAndTheClientStaysUsable) {
  KvServer server("127.0.0.1", 0);
  KvClient client("127.0.0.1", server.port(), 5);
  EXPECT_FALSE(client.TryGet("never", 0.05).has_value());
  EXPECT_THAT(ErrorOf([&] { client.Get("never", 0.05); }),
              HasSubstr("Unavailable: no value for \"never\" at 127.0.0.1:"));
  client.Set("never", "now");
  EXPECT_EQ(client.Get("never", 1), "now");
}

TEST(KvStoreTest, ManyClientsAtOnce) {
  KvServer server("127.0.0.1", 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      KvClient client("127.0.0.1", server.port(), 5);
      client.Set(std::to_string(i), std::to_string(i * i));
      for (int j = 0; j < 16; ++j) {
        EXPECT_EQ(client.Get(std::to_string(j), 10), std::to_string(j * j));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(KvStoreTest, PortInUseIsNamed) {
  KvServer server("127.0.0.1", 0);
  EXPECT_EQ(ErrorOf([&] { KvServer("127.0.0.1", server.port()); }),
            StrCat("Unavailable: port ", server.port(),
                   " on 127.0.0.1 is in use; set MASTER_PORT to a free one"));
}

TEST(KvStoreTest, ClientWaitsForTheServerToAppear) {
  int port = 0;
  { port = KvServer("127.0.0.1", 0).port(); }
  std::unique_ptr<KvServer> server;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server = std::make_unique<KvServer>("127.0.0.1", port);
  });
  KvClient client("127.0.0.1", port, 10);
  late.join();
  client.Set("k", "v");
  EXPECT_EQ(client.Get("k", 1), "v");
}

TEST(KvStoreTest, NoServerIsUnavailable) {
  int port = 0;
  { port = KvServer("127.0.0.1", 0).port(); }
  EXPECT_THAT(ErrorOf([&] { KvClient("127.0.0.1", port, 0.1); }),
              HasSubstr(StrCat("Unavailable: rank 0 does not answer at "
                               "127.0.0.1:",
                               port, " within 0.1 s: Connection refused")));
}

TEST(KvStoreTest, LostServerIsUnavailable) {
  auto server = std::make_unique<KvServer>("127.0.0.1", 0);
  KvClient client("127.0.0.1", server->port(), 5);
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.reset();
  });
  EXPECT_THAT(ErrorOf([&] { client.Get("k", 30); }),
              HasSubstr("Unavailable: lost rank 0"));
  stopper.join();
  EXPECT_THAT(ErrorOf([&] { client.Set("k", "v"); }), HasSubstr("lost rank 0"));
}

TEST(KvStoreTest, ForeignServerIsNotMistakenForRankZero) {
  const Fd listener = ListenOn("127.0.0.1", 0);
  std::thread foreign([&] {
    std::string error;
    Fd peer;
    while (!peer.valid()) {
      peer = Fd(accept(listener.get(), nullptr, nullptr));
    }
    SendAll(peer, "HTTP/1.1 400 Bad Request", 24, DeadlineIn(5), &error);
  });
  EXPECT_THAT(ErrorOf([&] { KvClient("127.0.0.1", PortOf(listener), 5); }),
              HasSubstr("Unavailable: something other than rank 0 answers at"));
  foreign.join();
}

TEST(KvStoreTest, GarbageDoesNotDisturbTheServer) {
  KvServer server("127.0.0.1", 0);
  std::string error;
  const std::string wrong_magic = "GET / HTTP/1.1\r\n\r\n";
  const std::string huge_key = "plo-kv 1" + std::string(64, '\xff');
  for (const std::string& garbage : {wrong_magic, huge_key}) {
    const Fd socket =
        TryConnect("127.0.0.1", server.port(), DeadlineIn(5), &error);
    ASSERT_TRUE(socket.valid()) << error;
    ASSERT_TRUE(
        SendAll(socket, garbage.data(), garbage.size(), DeadlineIn(5), &error));
    // The server hangs up: nothing but its greeting comes.
    char byte = 0;
    size_t received = 0;
    while (RecvAll(socket, &byte, 1, DeadlineIn(5), &error)) ++received;
    EXPECT_LE(received, 8u);
    EXPECT_NE(error, "no answer in time");
  }
  KvClient client("127.0.0.1", server.port(), 5);
  client.Set("k", "v");
  EXPECT_EQ(client.Get("k", 1), "v");
}

}  // namespace
}  // namespace plo
